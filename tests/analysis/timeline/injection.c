/* A tool that listens to NVTX as Nsight Systems does, and writes down what it hears.

   Loaded through NVTX_INJECTION64_PATH; one line a push and pop in the file that NVTX_HEARD names.
   The numbers are those of NVTX 3's nvtxTypes.h. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef struct { size_t size; int (*table)(int module, Function ***out, unsigned *count); } Callbacks;
typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t color_type;
  uint32_t color;
  int32_t payload_type, reserved;
  uint64_t payload;
  int32_t message_type;
  const void *message;
} Attributes;

static FILE *heard;
static char *categories[64];

static void *create(const char *name) { return strdup(name); }
static void *string(void *domain, const char *text) { return (void)domain, strdup(text); }

static void category(void *domain, uint32_t id, const char *name) {
  (void)domain;
  if (id < 64) categories[id] = strdup(name);
}

static int push(void *domain, const Attributes *a) {
  const char *kind = a->category < 64 && categories[a->category] ? categories[a->category] : "-";
  fprintf(heard, "push %s %s %s %llu\n", (char *)domain, kind, (const char *)a->message,
          (unsigned long long)a->payload);
  fflush(heard);
  return 0;
}

static int pop(void *domain) {
  fprintf(heard, "pop %s\n", (char *)domain);
  fflush(heard);
  return 0;
}

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
  const Callbacks *callbacks = export_table(1);
  Function **table;
  unsigned count;
  heard = fopen(getenv("NVTX_HEARD"), "a");
  if (!heard || !callbacks->table(5, &table, &count) || count < 13) return 0;
  *table[4] = (Function)push;
  *table[5] = (Function)pop;
  *table[8] = (Function)category;
  *table[10] = (Function)string;
  *table[12] = (Function)create;
  return 1;
}

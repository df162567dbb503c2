/* libnvidia-ml.so.1 without a driver, loaded by nvidia-ml-py through ctypes like the real one.

   Variables of the environment say what is there: STRICT_GPUS (2), STRICT_MEMORY in bytes (80 GiB),
   STRICT_FABRIC (nvswitch, nvlink, pcie-peer or pcie-host), and, by a device's index, STRICT_ECC (errors), STRICT_NARROW (half of STRICT_LANES), STRICT_PENDING (a row to be
   remapped), STRICT_LINK_DOWN (an NVLink);
   STRICT_NAME, STRICT_MIG=1, STRICT_LOST=index (it answers nothing but its count), STRICT_THROTTLE
   (the mask), STRICT_UNSUPPORTED (functions, with commas between), STRICT_DRIVER=none.
   Structs and numbers are those of NVIDIA's nvml.h. With -DOLD_DRIVER newer functions do not exist. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int Return;
typedef struct { int index; } Device;
enum { OK = 0, UNINITIALIZED = 1, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gi, ci; } Process;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char busId[32]; } Pci;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned int fieldId, scopeId; long long timestamp, latencyUsec;
                 unsigned int valueType; Return nvmlReturn;
                 union { double d; unsigned int ui; unsigned long ul; unsigned long long ull; long long ll; } value;
               } Field;

static Device devices[64];

static long number(const char *name, long usual) {
    const char *said = getenv(name);
    return said && *said ? atol(said) : usual;
}

static Return asked(const Device *device, const char *function) {
    const char *missing = getenv("STRICT_UNSUPPORTED");
    const char *at = missing ? strstr(missing, function) : NULL;
    size_t length = strlen(function);
    if (at && (at[length] == ',' || at[length] == 0)) return NOT_SUPPORTED;
    if (device && device->index == number("STRICT_LOST", -1)) return GPU_IS_LOST;
    return OK;
}
#define ASK(device) do { Return why = asked(device, __func__); if (why) return why; } while (0)

/* A library may start threads: whoever is to fork ranks may not load it. */
static void *wait_for_events(void *nothing) { for (;;) pause(); return nothing; }

Return nvmlInitWithFlags(unsigned int flags) {
    const char *driver = getenv("STRICT_DRIVER");
    static pthread_t thread;
    if (!thread) pthread_create(&thread, NULL, wait_for_events, NULL);
    for (int i = 0; i < 64; i++) devices[i].index = i;
    return driver && !strcmp(driver, "none") ? DRIVER_NOT_LOADED : OK;
}
Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(Return error) { return error == GPU_IS_LOST ? "GPU is lost" : "an error"; }
Return nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    ASK(NULL);
    snprintf(out, size, "580.95.05");
    return OK;
}
Return nvmlDeviceGetCount_v2(unsigned int *out) {
    ASK(NULL);
    *out = (unsigned int)number("STRICT_GPUS", 2);
    return OK;
}
Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device **out) {
    ASK(NULL);
    if (index >= (unsigned int)number("STRICT_GPUS", 2)) return BAD_ARGUMENT;
    *out = &devices[index];
    return OK;
}
Return nvmlDeviceGetName(Device *device, char *out, unsigned int size) {
    ASK(device);
    const char *name = getenv("STRICT_NAME");
    snprintf(out, size, "%s", name ? name : "NVIDIA Strict");
    return OK;
}
Return nvmlDeviceGetUUID(Device *device, char *out, unsigned int size) {
    ASK(device);
    snprintf(out, size, "GPU-5741c700-0000-0000-0000-%012d", device->index);
    return OK;
}
Return nvmlDeviceGetMemoryInfo(Device *device, Memory *out) {
    ASK(device);
    out->total = (unsigned long long)number("STRICT_MEMORY", 80L << 30);
    out->used = 600ULL << 20;
    out->free = out->total - out->used;
    return OK;
}
Return nvmlDeviceGetMigMode(Device *device, unsigned int *current, unsigned int *pending) {
    ASK(device);
    *current = *pending = (unsigned int)number("STRICT_MIG", 0);
    return OK;
}
Return nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned int *out) {
    ASK(device);
    *out = number("STRICT_MIG", 0) ? 7 : 0;
    return OK;
}
Return nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned int index, Device **out) {
    ASK(device);
    return NOT_FOUND;
}
Return nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned int *count, Process *out) {
    ASK(device);
    const char *pid = getenv("STRICT_PID");
    unsigned int room = *count;
    *count = pid ? 1 : 0;
    if (!pid) return OK;
    if (!out || !room) return INSUFFICIENT_SIZE;
    memset(out, 0, sizeof *out);
    out->pid = (unsigned int)atol(pid);
    return OK;
}
Return nvmlDeviceGetPciInfo_v3(Device *device, Pci *out) {
    ASK(device);
    memset(out, 0, sizeof *out);
    out->bus = 0x10 + device->index;
    snprintf(out->busId, sizeof out->busId, "00000000:%02X:00.0", out->bus);
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    return OK;
}
#define VALUE(function, type, given) \
    Return function(Device *device, type *out) { ASK(device); *out = (type)(given); return OK; }
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned int, number("STRICT_LIMIT", 700000))
VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, 700000)
VALUE(nvmlDeviceGetPowerUsage, unsigned int, 350000)
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 1)
VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 1)
VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, number("STRICT_LANES", 16))
VALUE(nvmlDeviceGetCurrPcieLinkWidth, unsigned int,
      number("STRICT_LANES", 16) / (device->index == number("STRICT_NARROW", -1) ? 2 : 1))
VALUE(nvmlDeviceGetPersistenceMode, int, 1)
Return nvmlDeviceGetTotalEccErrors(Device *device, int type, int counter, unsigned long long *out) {
    ASK(device);
    *out = device->index == number("STRICT_ECC", -1) ? 3 : 0;
    return OK;
}
Return nvmlDeviceGetRemappedRows(Device *device, unsigned int *corrected, unsigned int *uncorrected,
                                 unsigned int *pending, unsigned int *failed) {
    ASK(device);
    *corrected = *uncorrected = *failed = 0;
    *pending = device->index == number("STRICT_PENDING", -1);
    return OK;
}
Return nvmlDeviceGetNvLinkState(Device *device, unsigned int link, int *out) {
    ASK(device);
    if (link > 1) return BAD_ARGUMENT;
    *out = !(link && device->index == number("STRICT_LINK_DOWN", -1));
    return OK;
}
Return nvmlDeviceGetClockInfo(Device *device, unsigned int kind, unsigned int *out) {
    ASK(device);
    *out = (unsigned int)number("STRICT_CLOCK", 1980);
    return OK;
}
Return nvmlDeviceGetMaxClockInfo(Device *device, unsigned int kind, unsigned int *out) {
    ASK(device);
    *out = 1980;
    return OK;
}
Return nvmlDeviceGetTemperature(Device *device, unsigned int kind, unsigned int *out) {
    ASK(device);
    *out = 55;
    return OK;
}
Return nvmlDeviceGetUtilizationRates(Device *device, Utilization *out) {
    ASK(device);
    out->gpu = (unsigned int)number("STRICT_USED", 0);
    out->memory = 0;
    return OK;
}
Return nvmlDeviceGetPcieThroughput(Device *device, unsigned int way, unsigned int *out) {
    ASK(device);
    *out = 1000;
    return OK;
}
Return nvmlDeviceGetFieldValues(Device *device, int count, Field *out) {
    ASK(device);
    const char *fabric = getenv("STRICT_FABRIC");
    int nvlink = !fabric || !strncmp(fabric, "nv", 2);
    for (int i = 0; i < count; i++) {
        unsigned int field = out[i].fieldId; /* 90, 91: MB/s of a link that two cores can simulate, links */
        out[i].nvmlReturn = out[i].scopeId == 0xFFFFFFFF ? OK : NOT_SUPPORTED;
        if ((field == 90 || field == 91) && !nvlink) out[i].nvmlReturn = NOT_SUPPORTED;
        out[i].value.ull = field == 90 ? 20 : field == 91 ? 1 : 4096;
    }
    return OK;
}
Return nvmlDeviceGetP2PStatus(Device *a, Device *b, int what, int *out) {
    ASK(a);
    const char *fabric = getenv("STRICT_FABRIC");
    int nvlink = !fabric || !strncmp(fabric, "nv", 2);
    int peer = nvlink || !strcmp(fabric, "pcie-peer");
    *out = (what == 2 ? nvlink : peer) ? 0 : 1;
    return OK;
}
Return nvmlDeviceGetNvLinkRemoteDeviceType(Device *device, unsigned int link, int *out) {
    ASK(device);
    const char *fabric = getenv("STRICT_FABRIC");
    if (fabric && strncmp(fabric, "nv", 2)) return NOT_SUPPORTED;
    *out = fabric && !strcmp(fabric, "nvlink") ? 0 : 2;
    return OK;
}
Return nvmlDeviceGetTopologyCommonAncestor(Device *a, Device *b, int *out) {
    ASK(a);
    const char *fabric = getenv("STRICT_FABRIC");
    *out = fabric && !strcmp(fabric, "pcie-peer") ? 20 : 40; /* below one CPU, or through it */
    return OK;
}
#ifndef OLD_DRIVER
VALUE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, number("STRICT_THROTTLE", 0))
Return nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *out) {
    struct timespec now;
    ASK(device);
    clock_gettime(CLOCK_MONOTONIC, &now); /* 350 W all the time, in mJ */
    *out = 350000ULL * now.tv_sec + 350000ULL * (now.tv_nsec / 1000000) / 1000;
    return OK;
}
#endif

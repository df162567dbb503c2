"""Ground: documents, errors, strict TOML, statistics, numbers, whole files."""

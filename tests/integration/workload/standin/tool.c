/* A tool as profilers and GPU sharers are: it answers dlsym for the driver's functions and goes on to the next dlsym. */
#include "log.h"

typedef int (*get_proc)(const char *, void **, int, uint64_t, void *);
typedef int (*library_data)(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
typedef int (*module_data)(void *, const void *);
static get_proc next_get;
static library_data next_library;
static module_data next_module;

static int tool_library(void *o, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    log_line("tool cuLibraryLoadData\n");
    return next_library(o, code, a, b, c, d, e, f);
}
static int tool_module(void *out, const void *code) {
    log_line("tool cuModuleLoadData\n");
    return next_module(out, code);
}
static void *own(const char *name, void *found) {
    if (!strcmp(name, "cuLibraryLoadData")) { next_library = (library_data)found; return (void *)tool_library; }
    if (!strcmp(name, "cuModuleLoadData")) { next_module = (module_data)found; return (void *)tool_module; }
    return found;
}
static int tool_get(const char *name, void **function, int version, uint64_t flags, void *status) {
    int result = next_get(name, function, version, flags, status);
    if (!result) *function = own(name, *function);
    return result;
}
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    const char *versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (int i = 0; i < 3 && !next; i++) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    void *found = next(handle, name);
    if (!found || strncmp(name, "cu", 2)) return found;
    if (!strcmp(name, "cuGetProcAddress_v2")) { next_get = (get_proc)found; return (void *)tool_get; }
    return own(name, found);
}

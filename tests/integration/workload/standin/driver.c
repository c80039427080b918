/* libcuda.so.1: logs what GPU code arrives. */
#include "log.h"

int cuLibraryLoadData(void *out, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
    (void)out;
    if (a != (void *)1 || b != (void *)2 || c != 3 || d != (void *)4 || e != (void *)5 || f != 6) return 999;
    return arrived("cuLibraryLoadData", code, 0);
}
int cuModuleLoadData(void *out, const void *code) { (void)out; return arrived("cuModuleLoadData", code, 0); }
int cuModuleLoadFatBinary(void *out, const void *code) { (void)out; return arrived("cuModuleLoadFatBinary", code, 0); }
int cuModuleLoadDataEx(void *out, const void *code, unsigned count, void *options, void *values) {
    (void)out;
    if (count != 1 || options != (void *)2 || values != (void *)3) return 999;
    return arrived("cuModuleLoadDataEx", code, 0);
}
int cuLinkAddData_v2(void *state, int type, const void *data, size_t size, const char *name, unsigned count,
                     void *options, void *values) {
    if (state != (void *)1 || type != 2 || strcmp(name, "name") || count != 3 || options != (void *)4 ||
        values != (void *)5) return 999;
    return arrived("cuLinkAddData_v2", data, size);
}
int cuLinkAddData(void *state, int type, const void *data, size_t size, const char *name, unsigned count, void *options,
                  void *values) {
    (void)state, (void)type, (void)name, (void)count, (void)options, (void)values;
    return arrived("cuLinkAddData", data, size);
}
int cuLaunchKernel(void) { return 77; }

/* One GPU, of the compute capability in STANDIN_SM; without that the driver does not tell. */
int cuCtxGetDevice(int *device) {
    *device = 3;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    const char *sm = getenv("STANDIN_SM");
    if (!sm || !*sm || device != 3) return 101;
    int number = atoi(sm);
    *value = attribute == 75 ? number / 10 : attribute == 76 ? number % 10 : -1;
    return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)flags;
    if (!strcmp(name, "cuGetProcAddress")) name = version >= 12000 ? "cuGetProcAddress_v2" : name;
    if (!strcmp(name, "cuLinkAddData")) name = "cuLinkAddData_v2";
    void *self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *function = self ? dlvsym(self, name, "STANDIN") : NULL; /* not dlsym: that may be the hook's */
    if (status) *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

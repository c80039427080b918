/* libcudart.so.13: as the real one, it asks for the driver's functions once and keeps them. */
#include "log.h"

typedef int (*get_proc)(const char *, void **, int, uint64_t, void *);
typedef int (*library_data)(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
static library_data load;
static void *registered[64];
static int count;

void cudart_init(void);
void cudart_init(void) {
    if (load) return;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    void *function = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;
    void *found = NULL;
    if (!function || ((get_proc)function)("cuLibraryLoadData", &found, 13000, 0, NULL)) abort();
    load = (library_data)found;
}
void **__cudaRegisterFatBinary(void *wrapper);
void **__cudaRegisterFatBinary(void *wrapper) {
    registered[count] = wrapper;
    return &registered[count++];
}
int cudart_load(void **handle);
int cudart_load(void **handle) {
    cudart_init();
    return load(NULL, *handle, (void *)1, (void *)2, 3, (void *)4, (void *)5, 6);
}

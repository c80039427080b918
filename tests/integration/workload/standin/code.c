/* A library with GPU code (code.s), which it hands to the driver in every way that real ones do.
 * DLSYM, IMPORT: what its imports are called, as they are or renamed. */
#include "log.h"

#ifndef DLSYM
#define DLSYM dlsym
#endif
#ifndef IMPORT
#define IMPORT(name) name
#endif
extern const struct wrapper { int magic, version; const void *container; const void *last; } wrappers[] __attribute__((visibility("hidden")));
void *DLSYM(void *, const char *);

static void *driver(void) { return dlopen("libcuda.so.1", RTLD_LAZY); }
static void *by_version(const char *getter, const char *name, int version) {
    void *get = DLSYM(driver(), getter), *found = NULL;
    if (!get || ((int (*)(const char *, void **, int, uint64_t, void *))get)(name, &found, version, 0, NULL)) return NULL;
    return found;
}
typedef int (*library_data)(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
typedef int (*module_data)(void *, const void *);
typedef int (*module_data_ex)(void *, const void *, unsigned, void *, void *);
typedef int (*link_data)(void *, int, const void *, size_t, const char *, unsigned, void *, void *);
typedef int (*nvjitlink_data)(void *, int, const void *, size_t, const char *);
static size_t size_of(const void *container) {
    uint64_t body;
    memcpy(&body, (const char *)container + 8, 8);
    return 16 + body;
}
static int call_library(void *f, const void *code) {
    return f ? ((library_data)f)(NULL, code, (void *)1, (void *)2, 3, (void *)4, (void *)5, 6) : -1;
}
static int call_link(void *f, const void *code) {
    return f ? ((link_data)f)((void *)1, 2, code, size_of(code), "name", 3, (void *)4, (void *)5) : -1;
}

#ifdef IMPORTS
int IMPORT(cuModuleLoadData)(void *, const void *);
int IMPORT(cuModuleLoadDataEx)(void *, const void *, unsigned, void *, void *);
int IMPORT(cuModuleLoadFatBinary)(void *, const void *);
int IMPORT(cuLibraryLoadData)(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
int IMPORT(cuLinkAddData_v2)(void *, int, const void *, size_t, const char *, unsigned, void *, void *);
int IMPORT(cuGetProcAddress_v2)(const char *, void **, int, uint64_t, void *);
int IMPORT(__nvJitLinkAddData_13_0)(void *, int, const void *, size_t, const char *);
#endif

/* Where the code is, and in which way it goes to the driver. */
int load(int index, const char *how);
int load(int index, const char *how) {
    const struct wrapper *wrapper = &wrappers[index];
    const void *container = wrapper->container;
    void *f;
    if (!strcmp(how, "library")) return call_library(by_version("cuGetProcAddress_v2", "cuLibraryLoadData", 13000), wrapper);
    if (!strcmp(how, "first-version")) return call_library(by_version("cuGetProcAddress", "cuLibraryLoadData", 11000), wrapper);
    if (!strcmp(how, "asked-twice")) {
        f = by_version("cuGetProcAddress_v2", "cuGetProcAddress", 13000);
        void *found = NULL;
        if (!f || ((int (*)(const char *, void **, int, uint64_t, void *))f)("cuLibraryLoadData", &found, 13000, 0, NULL)) return -1;
        return call_library(found, wrapper);
    }
    if (!strcmp(how, "container")) return call_library(by_version("cuGetProcAddress_v2", "cuLibraryLoadData", 13000), container);
    if (!strcmp(how, "module")) return (f = DLSYM(driver(), "cuModuleLoadData")) ? ((module_data)f)(NULL, container) : -1;
    if (!strcmp(how, "default")) return (f = DLSYM(RTLD_DEFAULT, "cuModuleLoadData")) ? ((module_data)f)(NULL, container) : -1;
    if (!strcmp(how, "module-ex"))
        return (f = DLSYM(driver(), "cuModuleLoadDataEx")) ? ((module_data_ex)f)(NULL, container, 1, (void *)2, (void *)3) : -1;
    if (!strcmp(how, "fatbin")) return (f = DLSYM(driver(), "cuModuleLoadFatBinary")) ? ((module_data)f)(NULL, wrapper) : -1;
    if (!strcmp(how, "link")) return call_link(by_version("cuGetProcAddress_v2", "cuLinkAddData", 13000), container);
    if (!strcmp(how, "nvjitlink")) {
        void *linker = dlopen("libnvJitLink.so.13", RTLD_LAZY);
        f = linker ? DLSYM(linker, "__nvJitLinkAddData_13_0") : NULL;
        return f ? ((nvjitlink_data)f)((void *)1, 4, container, size_of(container), "name") : -1;
    }
    if (!strcmp(how, "launch")) return (f = by_version("cuGetProcAddress_v2", "cuLaunchKernel", 13000)) ? ((int (*)(void))f)() : -1;
#ifdef IMPORTS
    if (!strcmp(how, "import-module")) return IMPORT(cuModuleLoadData)(NULL, container);
    if (!strcmp(how, "import-module-ex")) return IMPORT(cuModuleLoadDataEx)(NULL, container, 1, (void *)2, (void *)3);
    if (!strcmp(how, "import-fatbin")) return IMPORT(cuModuleLoadFatBinary)(NULL, wrapper);
    if (!strcmp(how, "import-library")) return call_library((void *)IMPORT(cuLibraryLoadData), wrapper);
    if (!strcmp(how, "import-link")) return call_link((void *)IMPORT(cuLinkAddData_v2), container);
    if (!strcmp(how, "import-get")) {
        void *found = NULL;
        return IMPORT(cuGetProcAddress_v2)("cuLibraryLoadData", &found, 13000, 0, NULL) ? -1 : call_library(found, wrapper);
    }
    if (!strcmp(how, "import-nvjitlink"))
        return IMPORT(__nvJitLinkAddData_13_0)((void *)1, 4, container, size_of(container), "name");
#endif
    return -2;
}

/* Code that is in no library. */
int load_memory(const void *code);
int load_memory(const void *code) {
    void *f = DLSYM(driver(), "cuModuleLoadData");
    return f ? ((module_data)f)(NULL, code) : -1;
}

/* Calls on their way to the driver: where a library hands over an emptied container, the driver gets the pack's.
 *
 * CUDA's runtime gets the driver's functions by dlsym(libcuda, "cuGetProcAddress_v2") and all others through that one.
 * So the hook answers dlsym, hands out a cuGetProcAddress of its own, and through it functions of its own for those
 * that take GPU code. All other functions are the driver's: a launch does not pass here. */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WRAPPER_MAGIC 0x466243B1u
#define CONTAINER_MAGIC 0xBA55ED50u
enum { WRAPPER = 24, WRAPPER_OF_SEVERAL = 2 };
enum { CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND = 302, NVJITLINK_ERROR_INTERNAL = 6, EXIT_LOADER = 127 };

/* --- containers that were exchanged; with the lock held */

enum { BUCKETS = 4096 };
struct exchanged { /* what is handed out for an address, as long as what lies there is the same */
    struct exchanged *next;
    const void *from;
    uint8_t seen[TT_KEY + WRAPPER];
    const void *to; /* NULL: no pack has it, and that was said */
};
static struct exchanged *buckets[BUCKETS];

static struct exchanged *exchanged_at(const void *from, const void *seen, size_t size) {
    uint8_t whole[TT_KEY + WRAPPER] = {0};
    memcpy(whole, seen, size);
    size_t bucket = (size_t)((uintptr_t)from >> 3) * UINT64_C(0x9E3779B97F4A7C15) >> 52;
    for (struct exchanged *known = buckets[bucket]; known; known = known->next)
        if (known->from == from && !memcmp(known->seen, whole, sizeof whole)) return known;
    struct exchanged *new = calloc(1, sizeof *new);
    if (!new) return NULL;
    new->from = from;
    memcpy(new->seen, whole, sizeof whole);
    new->to = from; /* not looked for yet */
    new->next = buckets[bucket];
    return buckets[bucket] = new;
}

/* The compute capability of this thread's GPU, or else of the first: 90 for 9.0; 0 where it is not known. */
static unsigned gpu_number(void) {
    enum { MAJOR = 75, MINOR = 76 };
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) return 0;
    int (*current)(int *) = (int (*)(int *))(uintptr_t)tt_real_symbol(driver, "cuCtxGetDevice");
    int (*attribute)(int *, int, int) = (int (*)(int *, int, int))(uintptr_t)tt_real_symbol(driver, "cuDeviceGetAttribute");
    int device = 0, major = 0, minor = 0;
    if (current && current(&device)) device = 0;
    int known = attribute && !attribute(&major, MAJOR, device) && !attribute(&minor, MINOR, device);
    dlclose(driver);
    return known && major > 0 && minor >= 0 ? (unsigned)(major * 10 + minor) : 0;
}

/* Says, once for each package, that the one for this GPU is not installed. Without the lock. */
static void check_package(const char *library, const struct tt_package *missing, const struct tt_found *found) {
    enum { SAID = 32 };
    static char said[SAID][sizeof missing->name];
    static size_t count;
    unsigned gpu = gpu_number();
    for (size_t i = 0; i < found->target_count; i++) /* code of the same major version and no newer minor runs */
        if (!gpu || (found->targets[i] / 10 == gpu / 10 && found->targets[i] <= gpu)) return;
    struct tt_package package;
    tt_acquire();
    if (missing) package = *missing;
    int again = count == SAID || (!missing && !tt_find_package(library, &package));
    for (size_t i = 0; !again && i < count; i++) again = !strcmp(said[i], package.name);
    if (!again) memcpy(said[count++], package.name, sizeof package.name);
    tt_release();
    if (again) return;
    char target[16] = "sm90";
    if (gpu) snprintf(target, sizeof target, "sm%u", gpu);
    tt_say("torchtailor: %s has its GPU code in a package of its own, and %s is not installed. Run `pip install "
           "'%s[%s]==%s'` with the index that it came from.", library,
           gpu ? "the one for this GPU" : "none for a GPU", package.name, target, package.version);
}

/* Looks for a container until its pack is there, in all as long as TORCHTAILOR_PACK_WAIT says; other threads go on
 * meanwhile. */
static int find_in_time(const struct tt_place *place, const uint8_t *key, struct tt_found *found) {
    enum { TICK = 50 /* ms */ };
    static const struct timespec moment = {0, TICK * 1000000L};
    static long waited;
    long wait = tt_pack_wait(), most = wait * (1000 / TICK);
    if (tt_find_container(place->path, key, found) || !wait) return found->container != NULL;
    if (!waited)
        tt_say("torchtailor: %s needs GPU code that is in a pack, which is not there yet: waiting for it up to %ld "
               "seconds.", place->path, wait);
    do {
        tt_release();
        nanosleep(&moment, NULL);
        tt_acquire();
        *found = (struct tt_found){0};
        if (tt_find_container_again(place->path, key, found, ++waited >= most)) return 1;
    } while (waited < most);
    return 0;
}

static const void *from_pack(const void *ticket, const struct tt_place *place) {
    const uint8_t *key = (const uint8_t *)ticket + 24;
    struct tt_found found = {0};
    struct tt_package package;
    char text[2 * TT_KEY + 1];
    tt_acquire();
    struct exchanged *known = exchanged_at(ticket, key, TT_KEY);
    const void *container = NULL;
    int missing = 0;
    if (known && known->to != ticket) {
        container = known->to;
    } else if (find_in_time(place, key, &found)) {
        container = found.container;
        if (!found.split) tt_note_miss(place, key, found.pack);
    } else if (!(missing = tt_find_package(place->path, &package))) {
        tt_key_text(key, text);
        tt_say("torchtailor: %s needs GPU code (container %.12s) that was moved to a pack, and no pack with it was found "
               "(looked in %s). Put the pack there, set TORCHTAILOR_PACK, or run `torchtailor restore`.",
               place->path, text, found.looked);
        tt_note_miss(place, key, NULL);
    }
    if (known) known->to = container;
    tt_release();
    if (missing || found.target_count) check_package(place->path, missing ? &package : NULL, &found);
    return container;
}

/* What the driver is given for code at a place: the code itself, or what was moved from there. */
static const void *exchange_code(const void *code, const char *word, uint64_t *size) {
    struct tt_place place;
    uint32_t magic = tt_u32(code);
    if (!tt_place_of(code, &place)) { /* compiled or read by the program: nothing was cut there */
        if (magic == 0x464C457F) tt_record_cubin(code);
        return code;
    }
    int is_ticket = magic == CONTAINER_MAGIC && place.room >= TT_TICKET && !tt_u64((const uint8_t *)code + 8) &&
                    !memcmp((const uint8_t *)code + 16, "TTPACK1", 8);
    if (tt_recording()) tt_record_place(word, &place, size ? *size : tt_image_size(code, place.room));
    if (!is_ticket) return code;
    const void *container = from_pack(code, &place);
    if (!container) return code;
    if (size) *size = TT_CONTAINER_HEADER + tt_u64((const uint8_t *)container + 8);
    return container;
}

static void *pointer_at(const void *start, size_t offset) {
    return (void *)(uintptr_t)tt_u64((const uint8_t *)start + offset);
}

/* A wrapper of the second version names its containers in a list that ends with NULL. */
static const void *exchange_several(const void *wrapper) {
    const void *const *list = pointer_at(wrapper, 16);
    struct tt_place place;
    int is_list = list && (uintptr_t)list % sizeof *list == 0 && tt_place_of(list, &place);
    size_t count = 0, most = is_list ? place.room / sizeof *list : 0;
    while (count < most && tt_is_container(list[count])) count++;
    if (!count || count == most || list[count]) return list; /* something else than we know */
    const void **copy = calloc(count + 1, sizeof *copy);
    int changed = 0;
    for (size_t i = 0; copy && i < count; i++) {
        copy[i] = exchange_code(list[i], "load", NULL);
        changed |= copy[i] != list[i];
    }
    if (!changed) {
        free(copy);
        return list;
    }
    return copy;
}

static const void *exchange(const void *code) {
    if (!code) return code;
    int kept = errno;
    const void *result = code;
    if (tt_u32(code) != WRAPPER_MAGIC) {
        result = exchange_code(code, "load", NULL);
    } else {
        const uint8_t *wrapper = code;
        const void *container = pointer_at(code, 8), *several = pointer_at(code, 16);
        const void *new = container ? exchange_code(container, "load", NULL) : container;
        const void *list = tt_u32(wrapper + 4) == WRAPPER_OF_SEVERAL ? exchange_several(wrapper) : several;
        if (new != container || list != several) {
            tt_acquire();
            struct exchanged *known = exchanged_at(code, wrapper, WRAPPER);
            if (known && known->to == code) {
                uint8_t *copy = malloc(WRAPPER);
                if (copy) {
                    memcpy(copy, wrapper, WRAPPER);
                    memcpy(copy + 8, &new, sizeof new);
                    memcpy(copy + 16, &list, sizeof list);
                    known->to = copy;
                }
            } else if (known && list != several) {
                free((void *)(uintptr_t)list); /* the list of the first time is the driver's */
            }
            if (known) result = known->to;
            tt_release();
        }
    }
    errno = kept;
    return result;
}

static const void *exchange_for_linker(const void *data, size_t *size) {
    if (!data || *size < sizeof(uint32_t)) return data;
    int kept = errno;
    uint64_t length = *size;
    struct tt_place place;
    /* What the program made itself is no matter of ours, and not recorded as code that the driver loads. */
    const void *result = tt_place_of(data, &place) ? exchange_code(data, "link", &length) : data;
    *size = length;
    errno = kept;
    return result;
}

/* --- our functions in place of the driver's, one for each function that was found under the name */

enum kind { OTHER = -1, GET_PROC, LIBRARY_DATA, MODULE_DATA, MODULE_DATA_EX, MODULE_FATBIN, LINK_DATA, NVJITLINK_DATA, KINDS };
enum { SLOTS = 4 };
static _Atomic(void *) real[KINDS][SLOTS];

TT_EARLY static enum kind kind_of(const char *name) {
    static const struct {
        const char *name;
        enum kind kind;
    } names[] = {
        {"cuGetProcAddress", GET_PROC},        {"cuGetProcAddress_v2", GET_PROC},
        {"cuLibraryLoadData", LIBRARY_DATA},   {"cuModuleLoadData", MODULE_DATA},
        {"cuModuleLoadDataEx", MODULE_DATA_EX}, {"cuModuleLoadFatBinary", MODULE_FATBIN},
        {"cuLinkAddData", LINK_DATA},          {"cuLinkAddData_v2", LINK_DATA},
        {"nvJitLinkAddData", NVJITLINK_DATA},
    };
    if (name[0] == '_' && name[1] == '_' && name[2] == 'n' && name[3] == 'v')
        return strncmp(name, "__nvJitLinkAddData_", 19) ? OTHER : NVJITLINK_DATA;
    if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'v')) return OTHER;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) return names[i].kind;
    return OTHER;
}

typedef int (*get_proc)(const char *, void **, int, uint64_t, void *);
typedef int (*library_data)(void *, const void *, void *, void *, unsigned, void *, void *, unsigned);
typedef int (*module_data)(void *, const void *);
typedef int (*module_data_ex)(void *, const void *, unsigned, void *, void *);
typedef int (*link_data)(void *, int, const void *, size_t, const char *, unsigned, void *, void *);
typedef int (*nvjitlink_data)(void *, int, const void *, size_t, const char *);

/* The first version has no fifth argument; the driver's function then does not look at it. */
static int call_get_proc(get_proc call, const char *name, void **function, int version, uint64_t flags, void *status) {
    int result = call(name, function, version, flags, status);
    if (!result && name && function && *function) *function = tt_wrap_named(name, *function);
    return result;
}

static int call_link(link_data call, void *state, int type, const void *data, size_t size, const char *name,
                     unsigned count, void *options, void *values) {
    const void *given = exchange_for_linker(data, &size);
    return call(state, type, given, size, name, count, options, values);
}

static int call_nvjitlink(nvjitlink_data call, void *state, int type, const void *data, size_t size, const char *name) {
    const void *given = exchange_for_linker(data, &size);
    return call(state, type, given, size, name);
}

#define REAL(kind, slot, type) ((type)(uintptr_t)atomic_load_explicit(&real[kind][slot], memory_order_acquire))
#define FUNCTIONS(n)                                                                                                   \
    static int get_proc_##n(const char *name, void **function, int version, uint64_t flags, void *status) {            \
        return call_get_proc(REAL(GET_PROC, n, get_proc), name, function, version, flags, status);                     \
    }                                                                                                                  \
    static int library_data_##n(void *out, const void *code, void *a, void *b, unsigned c, void *d, void *e,           \
                                unsigned f) {                                                                          \
        return REAL(LIBRARY_DATA, n, library_data)(out, exchange(code), a, b, c, d, e, f);                             \
    }                                                                                                                  \
    static int module_data_##n(void *out, const void *code) {                                                          \
        return REAL(MODULE_DATA, n, module_data)(out, exchange(code));                                                 \
    }                                                                                                                  \
    static int module_data_ex_##n(void *out, const void *code, unsigned count, void *a, void *b) {                     \
        return REAL(MODULE_DATA_EX, n, module_data_ex)(out, exchange(code), count, a, b);                              \
    }                                                                                                                  \
    static int module_fatbin_##n(void *out, const void *code) {                                                        \
        return REAL(MODULE_FATBIN, n, module_data)(out, exchange(code));                                               \
    }                                                                                                                  \
    static int link_data_##n(void *state, int type, const void *data, size_t size, const char *name, unsigned count,   \
                             void *options, void *values) {                                                            \
        return call_link(REAL(LINK_DATA, n, link_data), state, type, data, size, name, count, options, values);        \
    }                                                                                                                  \
    static int nvjitlink_data_##n(void *state, int type, const void *data, size_t size, const char *name) {            \
        return call_nvjitlink(REAL(NVJITLINK_DATA, n, nvjitlink_data), state, type, data, size, name);                 \
    }
FUNCTIONS(0)
FUNCTIONS(1)
FUNCTIONS(2)
FUNCTIONS(3)

#define POINTERS(name)                                                                                                 \
    {(void *)(uintptr_t)name##_0, (void *)(uintptr_t)name##_1, (void *)(uintptr_t)name##_2, (void *)(uintptr_t)name##_3}

static void *wrap(enum kind kind, void *function) {
    void *const ours[KINDS][SLOTS] = {
        [GET_PROC] = POINTERS(get_proc),
        [LIBRARY_DATA] = POINTERS(library_data),
        [MODULE_DATA] = POINTERS(module_data),
        [MODULE_DATA_EX] = POINTERS(module_data_ex),
        [MODULE_FATBIN] = POINTERS(module_fatbin),
        [LINK_DATA] = POINTERS(link_data),
        [NVJITLINK_DATA] = POINTERS(nvjitlink_data),
    };
    if (tt_is_own(function)) return function;
    void *result = function;
    tt_acquire();
    for (int slot = 0; slot < SLOTS && result == function; slot++) {
        void *held = atomic_load(&real[kind][slot]);
        if (!held) atomic_store_explicit(&real[kind][slot], held = function, memory_order_release);
        if (held == function) result = ours[kind][slot];
    }
    tt_release();
    return result;
}

void *tt_wrap_named(const char *name, void *function) {
    enum kind kind = kind_of(name);
    return kind == OTHER ? function : wrap(kind, function);
}

/* --- finding what a library would have found without us */

#ifdef TORCHTAILOR_PRELOAD
static const void *const IN_GLOBAL_SCOPE = RTLD_NEXT; /* RTLD_DEFAULT would find our own */

TT_EARLY static tt_dlsym_function real_dlsym(void) {
    static _Atomic(void *) found;
    void *function = atomic_load(&found);
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (size_t i = 0; i < sizeof versions / sizeof *versions && !function; i++)
        function = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (!function) {
        tt_say("torchtailor: the C library's dlsym was not found; the program cannot run with the hook.");
        _exit(EXIT_LOADER);
    }
    if (!atomic_load(&found)) { /* a tool between us and the C library has no version */
        void *tool = ((tt_dlsym_function)(uintptr_t)function)(RTLD_NEXT, "dlsym");
        atomic_store(&found, function = tool ? tool : function);
    }
    return (tt_dlsym_function)(uintptr_t)function;
}
#else
static const void *const IN_GLOBAL_SCOPE = RTLD_DEFAULT;

static tt_dlsym_function real_dlsym(void) { return dlsym; }
#endif

TT_EARLY void *tt_real_symbol(void *handle, const char *name) { return real_dlsym()(handle, name); }

/* In the order of the loader: what is global, then the library that asks and what it needs. */
static void *find_for(const char *name, const void *caller, const char *library) {
    void *found = tt_real_symbol((void *)(uintptr_t)IN_GLOBAL_SCOPE, name);
    struct link_map *map = NULL;
    Dl_info info;
    if (!found && dladdr1(caller, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name && *map->l_name) {
        void *handle = dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = tt_real_symbol(handle, name);
            Dl_info where;
            if (found && dladdr(found, &where) && where.dli_fbase == info.dli_fbase) found = NULL; /* it has its own */
            dlclose(handle);
        }
    }
    if (!found && library) {
        void *handle = dlopen(library, RTLD_LAZY); /* stays: what was found in it is kept */
        if (handle) found = tt_real_symbol(handle, name);
    }
    return found && !tt_is_own(found) ? found : NULL;
}

/* --- dlsym */

__attribute__((used, visibility("hidden"))) void *tt_dlsym_wrapped(void *handle, const char *name, const void *caller) {
    void *found = handle == RTLD_DEFAULT ? NULL : tt_real_symbol(handle, name);
    if (handle == RTLD_DEFAULT || (found && tt_is_own(found))) {
        found = find_for(name, caller, NULL);
        if (!found) tt_real_symbol((void *)(uintptr_t)IN_GLOBAL_SCOPE, name); /* again in vain, for dlerror's sake */
    }
    return found ? tt_wrap_named(name, found) : NULL;
}

extern void *torchtailor_dlsym(void *handle, const char *name);

#ifdef TORCHTAILOR_PRELOAD
TT_EXPORT extern const int torchtailor_preload;
const int torchtailor_preload = 1;
static int preloaded(void) { return 0; }

TT_EARLY static void lead_cudart(void) {} /* it finds our dlsym first */
#else
/* Then that one records, and calls reach it first. */
static int preloaded(void) { return dlsym(RTLD_DEFAULT, "torchtailor_preload") != NULL; }

static void lead_cudart(void) {
    if (!preloaded()) tt_lead_cudart_here(torchtailor_dlsym);
}
#endif

/* Which function a call of dlsym goes on to. */
TT_EARLY __attribute__((used, visibility("hidden"))) void *tt_choose_dlsym(void *handle, const char *name) {
    if (!tt_forked()) lead_cudart(); /* a child does so when a library registers: it would read all that is mapped */
    if (handle != RTLD_NEXT && name && kind_of(name) != OTHER) return (void *)(uintptr_t)tt_dlsym_wrapped;
    return (void *)(uintptr_t)real_dlsym();
}

/* dlsym finds its caller by the return address (RTLD_NEXT, RTLD_DEFAULT, namespaces): so the C library's is not called
 * from here but jumped to. The caller's address is the third argument, which only tt_dlsym_wrapped looks at. */
#if defined __x86_64__
#define TAIL                                                                                                           \
    "  endbr64\n  movq (%rsp), %rdx\n  pushq %rdi\n  .cfi_adjust_cfa_offset 8\n  pushq %rsi\n"                         \
    "  .cfi_adjust_cfa_offset 8\n  pushq %rdx\n  .cfi_adjust_cfa_offset 8\n  call tt_choose_dlsym\n"                   \
    "  popq %rdx\n  .cfi_adjust_cfa_offset -8\n  popq %rsi\n  .cfi_adjust_cfa_offset -8\n  popq %rdi\n"                \
    "  .cfi_adjust_cfa_offset -8\n  jmp *%rax\n"
#else
#define TAIL                                                                                                           \
    "  hint #34\n  stp x29, x30, [sp, #-32]!\n  .cfi_def_cfa_offset 32\n  .cfi_offset 29, -32\n  .cfi_offset 30, -24\n" \
    "  mov x29, sp\n  stp x0, x1, [sp, #16]\n  bl tt_choose_dlsym\n  mov x16, x0\n  ldp x0, x1, [sp, #16]\n"           \
    "  ldp x29, x30, [sp], #32\n  .cfi_restore 29\n  .cfi_restore 30\n  .cfi_def_cfa_offset 0\n  mov x2, x30\n  br x16\n"
#endif
__asm__(".text\n.p2align 4\n.globl torchtailor_dlsym\n.type torchtailor_dlsym, %function\ntorchtailor_dlsym:\n"
        "  .cfi_startproc\n" TAIL "  .cfi_endproc\n.size torchtailor_dlsym, .-torchtailor_dlsym\n"
#ifdef TORCHTAILOR_PRELOAD
#define VERSIONED(label, name) /* preload.map */                                                                       \
    ".globl " label "\n.type " label ", %function\n.set " label ", torchtailor_dlsym\n.symver " label ", " name "\n"
        VERSIONED("tt_dlsym_old", "dlsym@GLIBC_2.2.5") VERSIONED("tt_dlsym_arm", "dlsym@GLIBC_2.17")
        VERSIONED("tt_dlsym_new", "dlsym@@GLIBC_2.34")
#endif
);

/* --- libraries that import the functions by name: renamed.txt */

#define CALLER __builtin_return_address(0)

static void *find_import(const char *name, const void *caller, const char *library) {
    void *found = find_for(name, caller, library);
    if (!found) tt_say("torchtailor: the function %s was not found; is %s installed?", name, library);
    return found;
}

#ifdef TORCHTAILOR_PRELOAD
#define ALSO(name) extern __typeof__(torchtailor_##name) name __attribute__((alias("torchtailor_" #name))) TT_EXPORT;
#else
#define ALSO(name)
#endif
#define DRIVER "libcuda.so.1"
#define IMPORT(name, type, ...)                                                                                        \
    type call = (type)(uintptr_t)find_import(#name, CALLER, DRIVER);                                                   \
    return call ? __VA_ARGS__ : CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;

#define GET(name)                                                                                                      \
    TT_EXPORT int torchtailor_##name(const char *symbol, void **function, int version, uint64_t flags, void *status);  \
    int torchtailor_##name(const char *symbol, void **function, int version, uint64_t flags, void *status) {           \
        IMPORT(name, get_proc, call_get_proc(call, symbol, function, version, flags, status))                          \
    }                                                                                                                  \
    ALSO(name)
GET(cuGetProcAddress)
GET(cuGetProcAddress_v2)

#define LOAD(name)                                                                                                     \
    TT_EXPORT int torchtailor_##name(void *out, const void *code);                                                     \
    int torchtailor_##name(void *out, const void *code) { IMPORT(name, module_data, call(out, exchange(code))) }       \
    ALSO(name)
LOAD(cuModuleLoadData)
LOAD(cuModuleLoadFatBinary)

TT_EXPORT int torchtailor_cuModuleLoadDataEx(void *out, const void *code, unsigned count, void *a, void *b);
int torchtailor_cuModuleLoadDataEx(void *out, const void *code, unsigned count, void *a, void *b) {
    IMPORT(cuModuleLoadDataEx, module_data_ex, call(out, exchange(code), count, a, b))
}
ALSO(cuModuleLoadDataEx)

TT_EXPORT int torchtailor_cuLibraryLoadData(void *out, const void *code, void *a, void *b, unsigned c, void *d, void *e,
                                            unsigned f);
int torchtailor_cuLibraryLoadData(void *out, const void *code, void *a, void *b, unsigned c, void *d, void *e,
                                  unsigned f) {
    IMPORT(cuLibraryLoadData, library_data, call(out, exchange(code), a, b, c, d, e, f))
}
ALSO(cuLibraryLoadData)

#define LINK(name)                                                                                                     \
    TT_EXPORT int torchtailor_##name(void *state, int type, const void *data, size_t size, const char *what,           \
                                     unsigned count, void *options, void *values);                                     \
    int torchtailor_##name(void *state, int type, const void *data, size_t size, const char *what, unsigned count,     \
                           void *options, void *values) {                                                              \
        IMPORT(name, link_data, call_link(call, state, type, data, size, what, count, options, values))                \
    }                                                                                                                  \
    ALSO(name)
LINK(cuLinkAddData)
LINK(cuLinkAddData_v2)

#define NVJITLINK(name, library)                                                                                       \
    TT_EXPORT int torchtailor_##name(void *state, int type, const void *data, size_t size, const char *what);          \
    int torchtailor_##name(void *state, int type, const void *data, size_t size, const char *what) {                   \
        nvjitlink_data call = (nvjitlink_data)(uintptr_t)find_import(#name, CALLER, library);                          \
        return call ? call_nvjitlink(call, state, type, data, size, what) : NVJITLINK_ERROR_INTERNAL;                  \
    }                                                                                                                  \
    ALSO(name)
/* nvJitLink.h gives each minor release of the toolkit names of its own. */
#define NVJITLINK_OF(major)                                                                                            \
    NVJITLINK(__nvJitLinkAddData_##major##_0, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_1, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_2, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_3, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_4, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_5, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_6, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_7, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_8, "libnvJitLink.so." #major)                                               \
    NVJITLINK(__nvJitLinkAddData_##major##_9, "libnvJitLink.so." #major)
NVJITLINK(nvJitLinkAddData, "libnvJitLink.so.13")
NVJITLINK_OF(12)
NVJITLINK_OF(13)
NVJITLINK_OF(14)

/* A library that uses libcudart registers its code when it is loaded: the moment to lead that libcudart to the hook,
 * however late it came. The libcudart is the one that the library needs; two releases may be loaded. */
typedef void **(*register_fatbin)(void *);
TT_EXPORT void **torchtailor___cudaRegisterFatBinary(void *wrapper);
void **torchtailor___cudaRegisterFatBinary(void *wrapper) {
    static const char name[] = "__cudaRegisterFatBinary";
    static struct {
        uintptr_t object;
        register_fatbin call;
    } last; /* a library registers hundreds in a row */
    Dl_info caller = {0}, info;
    struct link_map *map = NULL;
    struct tt_place place;
    uintptr_t object = tt_place_of(CALLER, &place) ? (uintptr_t)CALLER - place.address : 0;
    tt_acquire();
    register_fatbin call = object && last.object == object ? last.call : NULL;
    tt_release();
    if (call) return call(wrapper);
    lead_cudart();
    int known = dladdr1(CALLER, &caller, (void **)&map, RTLD_DL_LINKMAP); /* goes through all symbols: once for a library */
    void *found = tt_real_symbol(RTLD_DEFAULT, name);
    const char *file = found && dladdr(found, &info) && info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
    int of_tool = found && (!file || strncmp(file + 1, "libcudart.so", strlen("libcudart.so")));
    void *handle = !of_tool && map && map->l_name && *map->l_name ? dlopen(map->l_name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void *needed = handle ? tt_real_symbol(handle, name) : NULL;
    if (handle) dlclose(handle);
    if (needed) found = needed;
    if (!found) {
        tt_say("torchtailor: %s was not found, which %s needs. Install the CUDA runtime that it was made for.", name,
               known && caller.dli_fname ? caller.dli_fname : "a library");
        _exit(EXIT_LOADER);
    }
    call = (register_fatbin)(uintptr_t)found;
    tt_acquire();
    last.object = object;
    last.call = call;
    tt_release();
    return call(wrapper);
}

/* --- the process */

/* What the child needs is written down before: nothing of the loader is asked there (objects.c). */
static void before_fork(void) {
#ifdef TORCHTAILOR_PRELOAD
    tt_record_objects();
#endif
    tt_objects_before_fork();
    tt_acquire();
}

static void after_fork_in_parent(void) {
    tt_release();
    tt_objects_after_fork(0);
}

static void after_fork_in_child(void) {
    tt_after_fork();
    tt_pages_after_fork();
    tt_release();
    tt_objects_after_fork(1);
#ifdef TORCHTAILOR_PRELOAD
    if (tt_recording()) tt_watch_pages(1);
#endif
}

__attribute__((constructor)) static void start(void) {
    int is_second = preloaded();
    if (!is_second) tt_start_recording();
#ifdef TORCHTAILOR_PRELOAD
    int in_child = tt_recording() && tt_leave_first(); /* before our handlers: to them it is no child */
#endif
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    if (is_second) return;
    lead_cudart();
#ifdef TORCHTAILOR_PRELOAD
    if (tt_recording()) tt_watch_pages(in_child);
    tt_record_objects();
#endif
}

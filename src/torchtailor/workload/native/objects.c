/* Loaded objects: which one a pointer lies in, and leading their calls of dlsym to the hook. */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined __x86_64__
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#define GLOB_DAT R_X86_64_GLOB_DAT
#elif defined __aarch64__
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#define GLOB_DAT R_AARCH64_GLOB_DAT
#else
#error "the hook is for x86_64 and aarch64"
#endif

/* --- where a pointer lies */

/* With the lock: a fork waits for it, and dl_iterate_phdr's own lock, taken at a fork, stays taken in the child. */
static int iterate(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) {
    tt_acquire();
    int result = dl_iterate_phdr(callback, data);
    tt_release();
    return result;
}

struct search {
    uintptr_t pointer;
    struct tt_place *place;
};

static int holds(struct dl_phdr_info *object, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD) continue;
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (search->pointer < start || search->pointer - start >= segment->p_memsz) continue;
        search->place->address = search->pointer - object->dlpi_addr;
        search->place->room = segment->p_memsz - (search->pointer - start);
        snprintf(search->place->path, PATH_MAX, "%s", object->dlpi_name ? object->dlpi_name : "");
        return 1;
    }
    return 0;
}

/* The kernel's name of the file that is mapped at an address: a relative name may be of another current folder. */
static void mapped_name(uintptr_t pointer, char path[PATH_MAX]) {
    tt_busy++;
    FILE *maps = fopen("/proc/self/maps", "re");
    tt_busy--;
    if (!maps) return;
    char line[PATH_MAX + 128];
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char *name = strchr(line, '/');
        if (sscanf(line, "%lx-%lx", &start, &end) != 2 || pointer < start || pointer >= end || !name) continue;
        name[strcspn(name, "\n")] = '\0';
        snprintf(path, PATH_MAX, "%s", name);
        break;
    }
    fclose(maps);
}

int tt_place_of(const void *pointer, struct tt_place *place) {
    struct search search = {(uintptr_t)pointer, place};
    if (!iterate(holds, &search)) return 0;
    if (!place->path[0]) {
        ssize_t size = readlink("/proc/self/exe", place->path, PATH_MAX - 1);
        place->path[size > 0 ? size : 0] = '\0';
    } else if (place->path[0] != '/') {
        mapped_name((uintptr_t)pointer, place->path);
    }
    return 1;
}

int tt_is_container(const void *pointer) {
    struct tt_place place;
    return tt_place_of(pointer, &place) && place.room >= TT_CONTAINER_HEADER && tt_u32(pointer) == 0xBA55ED50;
}

static uintptr_t base_of(const void *pointer) {
    Dl_info found;
    return dladdr(pointer, &found) ? (uintptr_t)found.dli_fbase : 0;
}

int tt_is_own(const void *pointer) {
    static _Atomic uintptr_t own;
    uintptr_t mine = atomic_load(&own);
    if (!mine) atomic_store(&own, mine = base_of((const void *)(uintptr_t)tt_is_own));
    return base_of(pointer) == mine;
}

/* --- has something been loaded since */

static int count_adds(struct dl_phdr_info *object, size_t size, void *data) {
    (void)size;
    *(unsigned long long *)data = object->dlpi_adds;
    return 1;
}

int tt_objects_changed(struct tt_objects_seen *seen) {
    unsigned long long adds = 0;
    tt_acquire();
    dl_iterate_phdr(count_adds, &adds);
    int changed = !seen->known || seen->adds != adds;
    seen->known = 1;
    seen->adds = adds;
    tt_release();
    return changed;
}

static int count_object(struct dl_phdr_info *object, size_t size, void *data) {
    (void)object, (void)size;
    ++*(size_t *)data;
    return 0;
}

size_t tt_object_count(void) {
    size_t count = 0;
    iterate(count_object, &count);
    return count;
}

/* --- the slot through which an object calls dlsym */

struct range {
    uintptr_t start, end;
};
enum { MAX_RANGES = 32 };
struct leading {
    const void *ours;
    const void *real;  /* NULL: any object named libcudart; else objects that call this one past the hook */
    size_t first;      /* from this object on, also those that have not looked it up yet */
    size_t index, led; /* objects seen, slots changed */
    int failed;        /* errno of mprotect */
    char name[PATH_MAX];
    struct range data[MAX_RANGES]; /* where libcudart may keep functions of the driver that it has already */
    size_t ranges;
};

static uintptr_t of_dynamic(const struct dl_phdr_info *object, ElfW(Addr) value) {
    return value < object->dlpi_addr ? object->dlpi_addr + value : value; /* glibc adds the base to some in place */
}

static int within(const struct dl_phdr_info *object, uintptr_t pointer) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_LOAD && pointer >= start && pointer - start < segment->p_memsz) return 1;
    }
    return 0;
}

static int is_read_only(const struct dl_phdr_info *object, uintptr_t slot) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + segment->p_vaddr;
        if (segment->p_type == PT_GNU_RELRO && slot >= start && slot - start < segment->p_memsz) return 1;
    }
    return 0;
}

static int store(const struct dl_phdr_info *object, uintptr_t slot, const void *value) {
    uintptr_t page = slot & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
    size_t length = slot + sizeof value - page;
    /* Always: after RELRO it is needed, and a page that is writable already stays so. */
    if (mprotect((void *)page, length, PROT_READ | PROT_WRITE)) return errno;
    atomic_store((_Atomic uintptr_t *)slot, (uintptr_t)value);
    if (is_read_only(object, slot)) mprotect((void *)page, length, PROT_READ);
    return 0;
}

static void lead_slots(const struct dl_phdr_info *object, struct leading *leading) {
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++)
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
    if (!dynamic) return;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const ElfW(Rela) *tables[2] = {NULL, NULL};
    size_t sizes[2] = {0, 0};
    for (; dynamic->d_tag != DT_NULL; dynamic++) switch (dynamic->d_tag) {
        case DT_SYMTAB: symbols = (const void *)of_dynamic(object, dynamic->d_un.d_ptr); break;
        case DT_STRTAB: strings = (const void *)of_dynamic(object, dynamic->d_un.d_ptr); break;
        case DT_JMPREL: tables[0] = (const void *)of_dynamic(object, dynamic->d_un.d_ptr); break;
        case DT_PLTRELSZ: sizes[0] = dynamic->d_un.d_val; break;
        case DT_RELA: tables[1] = (const void *)of_dynamic(object, dynamic->d_un.d_ptr); break;
        case DT_RELASZ: sizes[1] = dynamic->d_un.d_val; break;
        default: break;
        }
    if (!symbols || !strings) return;
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; tables[t] && i < sizes[t] / sizeof(ElfW(Rela)); i++) {
            const ElfW(Rela) *entry = &tables[t][i];
            uint32_t type = ELF64_R_TYPE(entry->r_info);
            if (type != JUMP_SLOT && type != GLOB_DAT) continue;
            if (strcmp(strings + symbols[ELF64_R_SYM(entry->r_info)].st_name, "dlsym")) continue;
            uintptr_t slot = object->dlpi_addr + entry->r_offset;
            uintptr_t now = atomic_load((_Atomic uintptr_t *)slot);
            if (now == (uintptr_t)leading->ours) continue;
            int unresolved = within(object, now);
            if (leading->real && now != (uintptr_t)leading->real && !(unresolved && leading->index >= leading->first))
                continue; /* another tool's dlsym, which calls ours, or one that will find ours */
            int failed = store(object, slot, leading->ours);
            if (failed) leading->failed = failed;
            else leading->led++;
        }
    }
}

static void note_data(const struct dl_phdr_info *object, struct leading *leading) {
    for (int i = 0; i < object->dlpi_phnum && leading->ranges < MAX_RANGES; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_W)) continue;
        uintptr_t start = object->dlpi_addr + segment->p_vaddr, end = start + segment->p_memsz;
        for (int k = 0; k < object->dlpi_phnum; k++) { /* not what is read-only by now: it comes first */
            const ElfW(Phdr) *other = &object->dlpi_phdr[k];
            uintptr_t ends = object->dlpi_addr + other->p_vaddr + other->p_memsz;
            if (other->p_type == PT_GNU_RELRO && ends > start && ends <= end) start = ends;
        }
        leading->data[leading->ranges++] = (struct range){(start + 7) & ~(uintptr_t)7, end & ~(uintptr_t)7};
    }
}

static int lead_object(struct dl_phdr_info *object, size_t size, void *data) {
    (void)size;
    struct leading *leading = data;
    const char *name = object->dlpi_name ? object->dlpi_name : "";
    const char *last = strrchr(name, '/') ? strrchr(name, '/') + 1 : name;
    if (leading->real) {
        if (!within(object, (uintptr_t)lead_object)) lead_slots(object, leading);
    } else if (!strncmp(last, "libcudart.so", strlen("libcudart.so"))) {
        size_t before = leading->led;
        snprintf(leading->name, PATH_MAX, "%s", name);
        lead_slots(object, leading);
        if (leading->led > before) note_data(object, leading);
    }
    leading->index++;
    return 0;
}

/* libcudart may have asked the driver for its functions before the hook came: exchange those that it holds. */
static void exchange_held(const struct leading *leading) {
    static const char *const names[] = {
        "cuGetProcAddress", "cuGetProcAddress_v2", "cuLibraryLoadData", "cuModuleLoadData",
        "cuModuleLoadDataEx", "cuModuleLoadFatBinary", "cuLinkAddData", "cuLinkAddData_v2",
    };
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) return;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        void *function = tt_real_symbol(driver, names[n]);
        if (!function) continue;
        for (size_t r = 0; r < leading->ranges; r++) {
            for (uintptr_t at = leading->data[r].start; at + sizeof at <= leading->data[r].end; at += sizeof at) {
                uintptr_t held = (uintptr_t)function;
                if (atomic_load_explicit((_Atomic uintptr_t *)at, memory_order_relaxed) != held) continue;
                uintptr_t ours = (uintptr_t)tt_wrap_named(names[n], function);
                atomic_compare_exchange_strong((_Atomic uintptr_t *)at, &held, ours);
            }
        }
    }
    dlclose(driver);
}

void tt_lead_cudart_here(tt_dlsym_function ours) {
    static struct tt_objects_seen seen;
    if (!tt_objects_changed(&seen)) return;
    struct leading leading = {.ours = (const void *)(uintptr_t)ours};
    iterate(lead_object, &leading);
    if (leading.failed)
        tt_say("torchtailor: %s could not be led to its packs (%s). Start the program with `torchtailor run`.\n",
               leading.name, strerror(leading.failed));
    if (leading.ranges) exchange_held(&leading);
}

void tt_lead_deepbound_here(size_t first, const void *real, tt_dlsym_function ours) {
    struct leading leading = {.ours = (const void *)(uintptr_t)ours, .real = real, .first = first};
    iterate(lead_object, &leading);
}

/* Loaded objects: which one a pointer lies in, and leading their calls of dlsym to the hook. */
#include "hook.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
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

/* --- the objects of this process
 *
 * dl_iterate_phdr has a lock that fork does not reset: held by another thread (in dlopen, or in a dl_iterate_phdr of the
 * program's), it stays taken in the child for good. So a forked child never asks the loader, but the kernel: what is
 * mapped, and the headers at its start. Other processes ask the loader; a fork waits until no thread of ours does, or
 * what the program itself asks for in the child would hang. The threads that ask do not exclude each other: a callback
 * of the program's may have the loader's lock and open a file, which is recorded. */

typedef int (*object_callback)(struct dl_phdr_info *, size_t, void *);
static pthread_rwlock_t asking = PTHREAD_RWLOCK_INITIALIZER;
static int forked;

TT_EARLY int tt_forked(void) { return forked; }

void tt_objects_before_fork(void) { pthread_rwlock_wrlock(&asking); }

void tt_objects_after_fork(int in_child) {
    if (!in_child) {
        pthread_rwlock_unlock(&asking);
        return;
    }
    asking = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER; /* its writer was a thread of another number */
    forked = 1;
}

struct maps {
    char *text; /* lines that end with NUL */
    size_t size, room;
    int through[2]; /* a pipe: of what was unmapped meanwhile the kernel takes nothing, and sends no signal */
};

static int is_deleted(const char *path, size_t length) {
    static const char suffix[] = " (deleted)";
    return length >= sizeof suffix && !strcmp(path + length - (sizeof suffix - 1), suffix);
}

/* The next line from `at` on, or NULL. */
static const char *next_mapping(const struct maps *maps, const char *at, struct tt_mapping *mapping) {
    for (const char *end = maps->text + maps->size; at < end; at += strlen(at) + 1) {
        char *rest;
        mapping->start = strtoul(at, &rest, 16);
        if (*rest != '-') continue;
        mapping->end = strtoul(rest + 1, &rest, 16);
        if (strlen(rest) < 6) continue;
        mapping->runs = rest[3] == 'x';
        mapping->writes = rest[2] == 'w';
        mapping->is_shared = rest[4] == 's';
        mapping->offset = strtoull(rest + 5, &rest, 16);
        mapping->path = strchrnul(rest, '/');
        return at + strlen(at) + 1;
    }
    return NULL;
}

/* Without malloc and stdio: signal handlers open files, too. */
static int read_maps(struct maps *maps) {
    *maps = (struct maps){.room = 1 << 18};
    tt_busy++;
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    tt_busy--;
    if (file < 0) return 0;
    if (pipe2(maps->through, O_CLOEXEC | O_NONBLOCK)) {
        close(file);
        return 0;
    }
    maps->text = mmap(NULL, maps->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ssize_t got = -1;
    while (maps->text != MAP_FAILED && (got = read(file, maps->text + maps->size, maps->room - maps->size - 1)) > 0) {
        maps->size += (size_t)got;
        if (maps->room - maps->size > 1 << 14) continue;
        void *more = mremap(maps->text, maps->room, 2 * maps->room, MREMAP_MAYMOVE);
        if (more == MAP_FAILED) break;
        maps->text = more;
        maps->room *= 2;
    }
    close(file);
    if (maps->text == MAP_FAILED) {
        close(maps->through[0]);
        close(maps->through[1]);
        return 0;
    }
    for (size_t i = 0; i < maps->size; i++)
        if (maps->text[i] == '\n') maps->text[i] = '\0';
    for (char *at = maps->text, *end = at + maps->size; at < end;) {
        size_t length = strlen(at);
        if (is_deleted(at, length)) at[length - strlen(" (deleted)")] = '\0'; /* the rest is a line of its own, of nothing */
        at += length + 1;
    }
    return 1;
}

static void forget_maps(struct maps *maps) {
    munmap(maps->text, maps->room);
    close(maps->through[0]);
    close(maps->through[1]);
}

void tt_each_mapping(void (*callback)(const struct tt_mapping *, void *), void *data) {
    struct maps maps;
    struct tt_mapping mapping;
    if (!read_maps(&maps)) return;
    for (const char *line = maps.text; (line = next_mapping(&maps, line, &mapping));) callback(&mapping, data);
    forget_maps(&maps);
}

static int copy_mapped(const struct maps *maps, void *into, uintptr_t from, size_t size) {
    enum { AT_ONCE = 4096 }; /* what every pipe holds */
    for (size_t done = 0; done < size;) {
        size_t part = size - done < AT_ONCE ? size - done : AT_ONCE;
        ssize_t taken = write(maps->through[1], (const void *)(from + done), part);
        if (taken <= 0 || read(maps->through[0], (uint8_t *)into + done, (size_t)taken) != taken) return 0;
        done += (size_t)taken;
    }
    return 1;
}

enum { MAX_SEGMENTS = 1 << 14 }; /* a library that was cut to touched pages has hundreds */
struct object {
    ElfW(Ehdr) header;
    ElfW(Phdr) *segments; /* room for so many */
    uintptr_t base;
};

/* Whether `first`, and what is mapped of the same file after it (`rest`), is an object that the loader mapped: a file
 * that is mapped to be read has no code, and nothing to write to, where its headers say. (qemu shows code as data.) */
static int is_object(const struct maps *maps, const struct tt_mapping *first, const char *rest, struct object *object) {
    ElfW(Ehdr) *header = &object->header;
    if (first->offset || !*first->path || first->end - first->start < sizeof *header) return 0;
    if (!copy_mapped(maps, header, first->start, sizeof *header) || memcmp(header->e_ident, ELFMAG, SELFMAG)) return 0;
    if (header->e_phentsize != sizeof *object->segments || !header->e_phnum || header->e_phnum > MAX_SEGMENTS) return 0;
    uint64_t at = header->e_phoff, size = (uint64_t)header->e_phnum * sizeof *object->segments;
    uintptr_t table = at <= first->end - first->start && size <= first->end - first->start - at ? first->start + at : 0;
    struct tt_mapping other = {0};
    for (const char *line = rest; !table && (line = next_mapping(maps, line, &other));) { /* patchelf moves it */
        if (strcmp(other.path, first->path)) continue;
        if (!other.offset) break; /* loaded again */
        uint64_t room = other.end - other.start;
        if (at >= other.offset && at - other.offset <= room && size <= room - (at - other.offset))
            table = other.start + (uintptr_t)(at - other.offset);
    }
    if (!table || !copy_mapped(maps, object->segments, table, size)) return 0;
    const ElfW(Phdr) *start = NULL, *code = NULL, *variables = NULL;
    for (const ElfW(Phdr) *segment = object->segments; segment < object->segments + header->e_phnum; segment++) {
        if (segment->p_type != PT_LOAD) continue;
        if (!start && !segment->p_offset) start = segment;
        if (!code && segment->p_flags & PF_X && segment->p_filesz) code = segment;
        if (segment->p_flags & PF_W && segment->p_filesz) variables = segment;
    }
    if (!start || !code) return 0;
    object->base = first->start - start->p_vaddr;
    uintptr_t runs = object->base + code->p_vaddr;
    uintptr_t writes = variables ? object->base + variables->p_vaddr + variables->p_filesz - 1 : 0; /* after RELRO */
    other = *first;
    for (const char *line = rest; line; line = next_mapping(maps, line, &other)) {
        if (strcmp(other.path, first->path)) continue;
        if (other.runs && runs >= other.start && runs < other.end) return 1;
        if (other.writes && writes >= other.start && writes < other.end) return 1;
    }
    return 0;
}

/* As dl_iterate_phdr, in the order of addresses. */
static int iterate_mapped(object_callback callback, void *data) {
    struct maps maps;
    struct tt_mapping mapping;
    size_t room = MAX_SEGMENTS * sizeof *((struct object *)NULL)->segments;
    struct object object = {.segments = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
    char program[PATH_MAX];
    if (object.segments == MAP_FAILED) return 0;
    if (!read_maps(&maps)) {
        munmap(object.segments, room);
        return 0;
    }
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    int result = 0;
    for (const char *line = maps.text; !result && (line = next_mapping(&maps, line, &mapping));) {
        if (!is_object(&maps, &mapping, line, &object)) continue;
        struct dl_phdr_info info = {
            .dlpi_addr = object.base,
            .dlpi_name = strcmp(mapping.path, program) ? mapping.path : "", /* as the loader calls the program */
            .dlpi_phdr = object.segments,
            .dlpi_phnum = object.header.e_phnum,
        };
        result = callback(&info, sizeof info, data);
    }
    forget_maps(&maps);
    munmap(object.segments, room);
    return result;
}

static int iterate(object_callback callback, void *data) {
    if (forked) return iterate_mapped(callback, data);
    tt_busy++;
    pthread_rwlock_rdlock(&asking);
    int result = dl_iterate_phdr(callback, data);
    pthread_rwlock_unlock(&asking);
    tt_busy--;
    return result;
}

void tt_each_object(int (*callback)(struct dl_phdr_info *, size_t, void *), void *data) { iterate(callback, data); }

/* --- where a pointer lies */

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
    struct maps maps;
    struct tt_mapping mapping;
    if (!read_maps(&maps)) return;
    for (const char *line = maps.text; (line = next_mapping(&maps, line, &mapping));)
        if (pointer >= mapping.start && pointer < mapping.end && *mapping.path) {
            snprintf(path, PATH_MAX, "%s", mapping.path);
            break;
        }
    forget_maps(&maps);
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

int tt_is_own(const void *pointer) {
    extern const char __ehdr_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));
    return (uintptr_t)pointer >= (uintptr_t)__ehdr_start && (uintptr_t)pointer < (uintptr_t)_end;
}

/* --- has something been loaded since */

static int count_adds(struct dl_phdr_info *object, size_t size, void *data) {
    (void)size;
    *(unsigned long long *)data = object->dlpi_adds;
    return 1;
}

/* A forked child cannot know: what is mapped has no count. */
int tt_objects_changed(struct tt_objects_seen *seen) {
    unsigned long long adds = 0;
    if (forked) return 1;
    iterate(count_adds, &adds);
    tt_acquire();
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

/* How many there were before; 0 in a forked child, where new ones do not come last. */
size_t tt_object_count(void) {
    size_t count = 0;
    if (!forked) iterate(count_object, &count);
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
        tt_say("torchtailor: %s could not be led to its packs (%s). Start the program with `torchtailor run`.",
               leading.name, strerror(leading.failed));
    if (leading.ranges) exchange_held(&leading);
}

void tt_lead_deepbound_here(size_t first, const void *real, tt_dlsym_function ours) {
    struct leading leading = {.ours = (const void *)(uintptr_t)ours, .real = real, .first = first};
    iterate(lead_object, &leading);
}

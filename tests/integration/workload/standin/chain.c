/* One of several libraries with the same functions: whose is found next? */
#include "log.h"

#ifndef DLSYM
#define DLSYM dlsym
#endif
void *DLSYM(void *, const char *);
const char *whose(void);
const char *whose(void) { return NAME; }
const char *next_of(const char *name);
const char *next_of(const char *name) {
    if (!strcmp(name, NAME)) {
        const char *(*next)(void) = (const char *(*)(void))DLSYM(RTLD_NEXT, "whose");
        return next ? next() : "nobody";
    }
    const char *(*other)(const char *) = (const char *(*)(const char *))DLSYM(RTLD_NEXT, "next_of");
    return other ? other(name) : "nobody";
}
const char *found_by_default(const char *name);
const char *found_by_default(const char *name) { return DLSYM(RTLD_DEFAULT, name) ? "found" : "not found"; }

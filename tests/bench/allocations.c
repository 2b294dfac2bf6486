// Counts the blocks that the Python which loads this library allocates, those of its free lists excepted.
#include <stddef.h>
#include <stdint.h>

struct allocator {  // PyMemAllocatorEx
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
};

extern void PyMem_GetAllocator(int domain, struct allocator *);
extern void PyMem_SetAllocator(int domain, struct allocator *);

static struct allocator own[3];
static uint64_t *counter;

static void *count_malloc(void *at, size_t size) {
    struct allocator *one = at;
    ++*counter;
    return one->malloc(one->context, size);
}

static void *count_calloc(void *at, size_t number, size_t size) {
    struct allocator *one = at;
    ++*counter;
    return one->calloc(one->context, number, size);
}

static void *count_realloc(void *at, void *block, size_t size) {
    struct allocator *one = at;
    *counter += block == NULL;
    return one->realloc(one->context, block, size);
}

static void count_free(void *at, void *block) {
    struct allocator *one = at;
    one->free(one->context, block);
}

void install(uint64_t *where) {
    counter = where;
    for (int domain = 1; domain < 3; domain++) {  // of memory and of objects; both need the GIL, so that no count is lost
        struct allocator hook = {&own[domain], count_malloc, count_calloc, count_realloc, count_free};
        PyMem_GetAllocator(domain, &own[domain]);
        PyMem_SetAllocator(domain, &hook);
    }
}

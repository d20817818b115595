// Fibers, barriers, warp operations and launches of `device.h`.

#include "device.h"
#include "../kernels/params.cuh"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <mutex>
#include <vector>

namespace tailrace_emulator {

Fiber* current;
uint3 block, block_size, grid_size;
unsigned char* dynamic_shared;
unsigned waited;

namespace {

constexpr size_t STACK_BYTES = 256 * 1024;
constexpr size_t PAGE = 4096;
constexpr int BARRIERS = 16;

struct Copy {
    void* target;
    const void* source;
    bool valid;
};

struct Thread : Fiber {
    void* stack_pointer;
    Thread* next;  // in the list of those that can run, or of those that wait at the same barrier
    const char* waits_for;
    unsigned char* stack;
    std::vector<Copy> copies;          // not yet done, oldest first
    std::vector<size_t> groups;        // number of copies in each committed group, oldest first
    size_t uncommitted;
};

}  // namespace

struct Warp {
    const char* operation;  // what the lanes that arrived meet for
    void (*complete)(void* const* slots);
    void* slots[LANES];
    Thread* lanes[LANES];   // those that wait
    unsigned arrived;
    unsigned alive;
};

namespace {

struct Barrier {
    Thread* first;
    unsigned arrived;
    unsigned expected;  // 0: all that are alive
    int votes;
};

struct alignas(16) Params {
    unsigned char bytes[PARAM_BYTES_MAX];
};
using Entry = void (*)(Params);

// The running launch; `turn` is held while there is one.
std::mutex turn;
const char* kernel_name;
Entry kernel_entry;
Params kernel_params;

std::vector<Thread> threads;
Warp warps[THREADS_MAX / LANES];
Barrier barriers[BARRIERS];
unsigned alive;
int votes;  // of the barrier that was last released
Thread* runnable;
bool descending;
void* launcher;  // stack pointer of the caller while fibers run
alignas(128) unsigned char shared_memory[SHARED_BYTES_MAX];

// Stores the callee-saved registers and the stack pointer, and continues on another stack. A `ret` would always be
// mispredicted there.
extern "C" void tailrace_switch(void** save, void* to);
asm(R"(
.text
.globl tailrace_switch
.hidden tailrace_switch
.type tailrace_switch, @function
tailrace_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
.size tailrace_switch, .-tailrace_switch
)");

Thread* self() { return static_cast<Thread*>(current); }

[[noreturn]] void deadlock() {
    fprintf(stderr, "kernel %s, block (%u, %u, %u): threads wait for each other:\n", kernel_name, block.x, block.y, block.z);
    for (unsigned i = 0; i < block_size.x; i++) {
        const Thread& t = threads[i];
        if (t.waits_for && (i == 0 || t.waits_for != threads[i - 1].waits_for))
            fprintf(stderr, "  from thread %u: %s\n", i, t.waits_for);
        if (!t.waits_for && i > 0 && threads[i - 1].waits_for) fprintf(stderr, "  from thread %u: exited\n", i);
    }
    fail("deadlock");
}

// Continues with the next thread that can run; `save` receives where the current one goes on.
void run_next(void** save) {
    Thread* next = runnable;
    if (!next) deadlock();
    runnable = next->next;
    current = next;
    tailrace_switch(save, next->stack_pointer);
}

void wait_for(const char* what) {
    Thread* t = self();
    t->waits_for = what;
    run_next(&t->stack_pointer);
}

void wake(Thread* t) {
    t->waits_for = nullptr;
    t->next = runnable;
    runnable = t;
}

// Lanes run before other warps, so that few stacks are in use at a time.
void complete_warp(Warp& w) {
    if (w.complete) w.complete(w.slots);
    w.operation = nullptr;
    w.arrived = 0;
    for (int i = 0; i < LANES; i++) {
        w.slots[i] = nullptr;
        int lane = descending ? i : LANES - 1 - i;
        Thread* t = w.lanes[lane];
        w.lanes[lane] = nullptr;
        if (t) wake(t);
    }
}

void release_barrier(Barrier& b) {
    Thread* t = b.first;
    votes = b.votes;
    b = {};
    while (t) {
        Thread* next = t->next;
        wake(t);
        t = next;
    }
}

bool barrier_is_full(const Barrier& b) { return b.arrived > 0 && b.arrived >= (b.expected ? b.expected : alive); }

// Returns whether the barrier was full and has been released.
bool count_arrival(int barrier, unsigned expected) {
    if (barrier < 0 || barrier >= BARRIERS) fail("no barrier %d", barrier);
    if (expected % LANES != 0 || expected > block_size.x) fail("barrier %d of %u threads", barrier, expected);
    Barrier& b = barriers[barrier];
    if (b.arrived > 0 && b.expected != expected) fail("barrier %d meets for %u and for %u threads", barrier, b.expected, expected);
    b.expected = expected;
    b.arrived++;
    if (!barrier_is_full(b)) return false;
    release_barrier(b);
    return true;
}

// Where every fiber begins.
void thread_main() {
    kernel_entry(kernel_params);
    Thread* t = self();
    // A thread that has exited no longer counts for barriers of the whole block, nor for its warp.
    alive--;
    t->warp->alive--;
    if (t->warp->arrived > 0 && t->warp->arrived == t->warp->alive) complete_warp(*t->warp);
    for (Barrier& b : barriers)
        if (b.expected == 0 && barrier_is_full(b)) release_barrier(b);
    if (alive == 0) {
        void* unused;
        tailrace_switch(&unused, launcher);
    }
    void* unused;
    run_next(&unused);
    __builtin_unreachable();
}

void make_threads() {
    threads.resize(THREADS_MAX);
    size_t bytes = THREADS_MAX * STACK_BYTES;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    for (unsigned i = 0; i < THREADS_MAX; i++) {
        threads[i].stack = static_cast<unsigned char*>(stacks) + i * STACK_BYTES;
        mprotect(threads[i].stack, PAGE, PROT_NONE);
    }
}

void start_thread(unsigned i) {
    Thread& t = threads[i];
    t.thread = {i, 0, 0};
    t.warp = &warps[i / LANES];
    t.waits_for = nullptr;
    t.copies.clear();
    t.groups.clear();
    t.uncommitted = 0;
    // Stacks begin at different offsets, else they would share few sets of the caches.
    void** top = reinterpret_cast<void**>(t.stack + STACK_BYTES - i * 704 % PAGE);
    *--top = nullptr;  // what follows the return address, so that the stack is aligned as after a call
    *--top = reinterpret_cast<void*>(thread_main);
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    t.stack_pointer = top;
}

void run_block(unsigned count, unsigned shared_bytes) {
    waited = 0;
    alive = count;
    memset(shared_memory, 0xff, shared_bytes);
    memset(static_cast<void*>(warps), 0, sizeof warps);
    memset(static_cast<void*>(barriers), 0, sizeof barriers);
    runnable = nullptr;
    for (unsigned n = 0; n < count; n++) {
        unsigned i = descending ? n : count - 1 - n;
        start_thread(i);
        warps[i / LANES].alive++;
        wake(&threads[i]);
    }
    run_next(&launcher);
    if (waited == 0) fail("no thread of the block called wait_previous");
}

// The library that this function lies in, or the program.
void* own_library() {
    Dl_info here;
    void* library = dladdr(reinterpret_cast<void*>(&own_library), &here) ? dlopen(here.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
    return library ? library : RTLD_DEFAULT;
}

Entry find_kernel(const char* name) {
    static void* const library = own_library();
    return reinterpret_cast<Entry>(dlsym(library, name));
}

}  // namespace

void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "kernel %s, block (%u, %u, %u), thread %u: ", kernel_name, block.x, block.y, block.z,
            current ? current->thread.x : 0);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

void meet_warp(const char* operation, void* slot, void (*complete)(void* const* slots)) {
    Thread* t = self();
    Warp& w = *t->warp;
    if (w.operation && w.operation != operation && strcmp(w.operation, operation) != 0)
        fail("lanes of a warp meet in %s and in %s", w.operation, operation);
    w.operation = operation;
    w.complete = complete;
    unsigned lane = t->thread.x % LANES;
    w.slots[lane] = slot;
    if (++w.arrived == w.alive) {
        complete_warp(w);
        return;
    }
    w.lanes[lane] = t;
    wait_for(operation);
}

void meet_barrier(int barrier, unsigned expected) {
    Thread* t = self();
    if (count_arrival(barrier, expected)) return;
    Barrier& b = barriers[barrier];
    t->next = b.first;
    b.first = t;
    wait_for(barrier == 0 ? "sync_block" : "sync_named");
}

int count_block(bool x) {
    barriers[0].votes += x;
    meet_barrier(0, 0);
    return votes;
}

void arrive_barrier(int barrier, unsigned expected) { count_arrival(barrier, expected); }

// --- asynchronous copies ----------------------------------------------------------------------------------------------
void copy_issue(void* target, const void* source, bool valid) {
    check_aligned(target, 16);
    check_aligned(source, 16);
    memset(target, 0xff, 16);
    self()->copies.push_back({target, source, valid});
    self()->uncommitted++;
}

void copy_commit() {
    self()->groups.push_back(self()->uncommitted);
    self()->uncommitted = 0;
}

void copy_wait(unsigned in_flight) {
    Thread* t = self();
    if (t->groups.size() <= in_flight) return;
    size_t done_groups = t->groups.size() - in_flight, done = 0;
    for (size_t i = 0; i < done_groups; i++) done += t->groups[i];
    for (size_t i = 0; i < done; i++) {
        const Copy& c = t->copies[i];
        if (c.valid)
            memcpy(c.target, c.source, 16);
        else
            memset(c.target, 0, 16);
    }
    t->copies.erase(t->copies.begin(), t->copies.begin() + long(done));
    t->groups.erase(t->groups.begin(), t->groups.begin() + long(done_groups));
}

// --- matrix instructions ----------------------------------------------------------------------------------------------
namespace {

struct LoadMatrix {
    uint32_t* r;
    const void* row;
    bool transposed;
};

// Element pairs of four 8x8 tiles: lane i receives row i / 4, columns 2 (i % 4) and the next; of the transposed tile
// likewise.
void complete_load_matrix(void* const* slots) {
    uint16_t tiles[4][8][8];
    for (int i = 0; i < LANES; i++) {
        if (!slots[i]) fail("load_matrix without lane %d", i);
        memcpy(tiles[i / 8][i % 8], static_cast<LoadMatrix*>(slots[i])->row, 16);
    }
    for (int i = 0; i < LANES; i++) {
        const LoadMatrix& m = *static_cast<LoadMatrix*>(slots[i]);
        int row = i / 4, col = 2 * (i % 4);
        for (int t = 0; t < 4; t++) {
            uint16_t lo = m.transposed ? tiles[t][col][row] : tiles[t][row][col];
            uint16_t hi = m.transposed ? tiles[t][col + 1][row] : tiles[t][row][col + 1];
            m.r[t] = lo | uint32_t(hi) << 16;
        }
    }
}

struct Mma {
    float* d;
    const uint32_t* a;
    const uint32_t* b;
    bool bf16;
};

// The two values of a word.
float2 unpack(uint32_t word, bool bf16) {
    if (bf16) return {bf16_to_f32(uint16_t(word)), bf16_to_f32(uint16_t(word >> 16))};
    return f16x2_to_f32(word);
}

void complete_mma(void* const* slots) {
    float a[16][16];
    alignas(32) float b[16][8], d[16][8];
    for (int i = 0; i < LANES; i++) {
        if (!slots[i]) fail("mma without lane %d", i);
        const Mma& m = *static_cast<Mma*>(slots[i]);
        int group = i / 4, pair = 2 * (i % 4);
        for (int half = 0; half < 2; half++) {  // of k
            int k = pair + 8 * half;
            float2 upper = unpack(m.a[2 * half], m.bf16), lower = unpack(m.a[2 * half + 1], m.bf16);
            a[group][k] = upper.x, a[group][k + 1] = upper.y;
            a[group + 8][k] = lower.x, a[group + 8][k + 1] = lower.y;
            float2 column = unpack(m.b[half], m.bf16);
            b[k][group] = column.x, b[k + 1][group] = column.y;
            memcpy(&d[group + 8 * half][pair], &m.d[2 * half], 8);
        }
    }
    for (int row = 0; row < 16; row++) {
        __m256 sum = _mm256_load_ps(d[row]);
        for (int k = 0; k < 16; k++) sum = _mm256_fmadd_ps(_mm256_set1_ps(a[row][k]), _mm256_load_ps(b[k]), sum);
        _mm256_store_ps(d[row], sum);
    }
    for (int i = 0; i < LANES; i++)
        for (int half = 0; half < 2; half++)
            memcpy(&static_cast<Mma*>(slots[i])->d[2 * half], &d[i / 4 + 8 * half][2 * (i % 4)], 8);
}

}  // namespace

void load_matrix(uint32_t* r, const void* row, bool transposed) {
    check_aligned(row, 16);
    LoadMatrix slot{r, row, transposed};
    meet_warp("load_matrix", &slot, complete_load_matrix);
}

void mma_16x8x16(float* d, const uint32_t* a, const uint32_t* b, bool bf16) {
    Mma slot{d, a, b, bf16};
    meet_warp("mma", &slot, complete_mma);
}

}  // namespace tailrace_emulator

extern "C" int tailrace_emulate(const char* kernel, const unsigned grid[3], unsigned threads, unsigned shared_bytes,
                                const void* params, size_t param_bytes) {
    using namespace tailrace_emulator;
    if (threads == 0 || threads > THREADS_MAX || shared_bytes > SHARED_BYTES_MAX) return 2;
    // Smaller structs would travel in registers.
    if (param_bytes <= 16 || param_bytes > PARAM_BYTES_MAX) return 2;
    std::lock_guard<std::mutex> lock(turn);
    kernel_entry = find_kernel(kernel);
    if (!kernel_entry) return 1;
    kernel_name = kernel;
    memset(kernel_params.bytes, 0xff, sizeof kernel_params.bytes);
    memcpy(kernel_params.bytes, params, param_bytes);
    if (tailrace_emulator::threads.empty()) make_threads();
    dynamic_shared = shared_memory;
    block_size = {threads, 1, 1};
    grid_size = {grid[0], grid[1], grid[2]};
    descending = false;
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                block = {x, y, z};
                run_block(threads, shared_bytes);
                descending = !descending;
            }
    current = nullptr;
    return 0;
}

// What every parameter struct must measure; `src/params.rs` asserts the same of its own.
#define SIZE(NAME, BYTES) static_assert(sizeof(NAME) == BYTES, #NAME)
SIZE(StepHeader, 16);
SIZE(StepRow, 16);
SIZE(StepView, 32);
SIZE(Step, 32);
SIZE(LayerBlocks, 72);
SIZE(Q8Scale, 8);
SIZE(Outputs, 32);
SIZE(Matrix, 48);
SIZE(MatVecParams, 216);
SIZE(DequantParams, 56);
SIZE(GemmParams, 80);
SIZE(RepackParams, 56);
SIZE(SyntheticParams, 56);
SIZE(RopeTableParams, 56);
SIZE(EmbedParams, 96);
SIZE(NormParams, 88);
SIZE(AddNormParams, 64);
SIZE(GateParams, 80);
SIZE(SoftCapParams, 56);
SIZE(RopeStoreParams, 176);
SIZE(AttentionParams, 240);
SIZE(GatherParams, 32);
SIZE(Candidate, 8);
SIZE(TopParams, 40);
SIZE(SetParams, 32);
SIZE(CopyParams, 48);
SIZE(FillParams, 144);
#undef SIZE

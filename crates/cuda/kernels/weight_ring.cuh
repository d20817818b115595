// The weights of a warp's rows as a stream through a ring in shared memory.
//
// A warp has a run of consecutive output rows. In each plane of a matrix they are one run of bytes, so that the stream
// needs no notion of a row: it is cut into stages of whole blocks, and a stage is one copy for each plane. The ring is filled
// before anything else happens and stays full: what hides the latency of memory is the bytes in it, those of all warps of a
// multiprocessor together, not the number of threads.
//
// Blocks keep their number modulo 16 in the ring, so that copies are aligned in every plane (the narrowest field has one
// byte); a copy may begin and end up to 15 bytes outside its blocks. Matrices must be readable to the next multiple of 16.
#pragma once

#include "common.cuh"
#include "params.cuh"

// Rows of one matrix that a warp computes.
struct Span {
    uint32_t first;
    uint32_t end;
};

// Share `part` of `parts` of all rows of all matrices, as far as it lies in matrix `m`.
DEVICE Span span_of(const MatVecParams& p, uint32_t m, uint32_t part, uint32_t parts) {
    uint32_t before = 0, total = 0;
    for (uint32_t i = 0; i < p.matrices; i++) {
        if (i < m) before += p.matrix[i].rows;
        total += p.matrix[i].rows;
    }
    uint32_t first = uint32_t(uint64_t(total) * part / parts), end = uint32_t(uint64_t(total) * (part + 1) / parts);
    uint32_t rows = p.matrix[m].rows;
    return {min(max(first, before) - before, rows), min(max(end, before) - before, rows)};
}

template <class T> struct WeightRing {
    enum : uint32_t { PHASE = 16 };  // blocks; see above

    const MatVecParams& p;
    uint32_t part, parts;
    uint32_t stages;        // a power of two
    uint8_t* bytes;         // [plane][stages * T::STAGE blocks][field bytes]
    CopyBarrier* barriers;  // one for each stage
    uint32_t blocks_of_row;

    // The next stage that is asked for: of matrix `matrix`, from block `next` on; those from `first` to `end` are wanted.
    uint32_t matrix = 0, next = 0, first = 0, end = 0;
    const uint8_t* source[T::FIELDS];  // of block `next` in each plane
    uint32_t issued = 0, landed = 0, consumed = 0;

    static DEVICE uint32_t bytes_for(uint32_t stages) { return stages * (T::STAGE * T::BLOCK_BYTES + sizeof(CopyBarrier)); }

    DEVICE WeightRing(const MatVecParams& p, uint32_t part, uint32_t parts, uint8_t* shared)
        : p(p), part(part), parts(parts), stages(p.stages), bytes(shared),
          barriers(reinterpret_cast<CopyBarrier*>(shared + p.stages * T::STAGE * T::BLOCK_BYTES)),
          blocks_of_row(p.k / (T::UNIT * T::UNITS)) {
        for (uint32_t i = 0; i < stages; i++) copy_barrier_init(&barriers[i]);
        open_matrix();
        for (uint32_t i = 0; i < stages; i++) issue();
    }

    DEVICE void open_matrix() {
        Span span = span_of(p, matrix, part, parts);
        first = span.first * blocks_of_row;
        end = span.end * blocks_of_row;
        next = first < end ? first / PHASE * PHASE : end;
#pragma unroll
        for (uint32_t i = 0; i < T::FIELDS; i++) source[i] = p.matrix[matrix].plane[i] + uint64_t(next) * T::bytes(i);
    }

    // Asks for the next stage, if there is one.
    DEVICE void issue() {
        while (next >= end) {
            if (matrix + 1 >= p.matrices) return;
            matrix++;
            open_matrix();
        }
        uint32_t slot = issued & (stages - 1);
        // Bytes of the stage that are wanted, in whole sixteens: all but at the ends of the run.
        uint32_t skip[T::FIELDS] = {}, stop[T::FIELDS], total = T::STAGE * T::BLOCK_BYTES;
#pragma unroll
        for (uint32_t i = 0; i < T::FIELDS; i++) stop[i] = T::STAGE * T::bytes(i);
        if (next < first || next + T::STAGE > end) {
            total = 0;
#pragma unroll
            for (uint32_t i = 0; i < T::FIELDS; i++) {
                skip[i] = (max(next, first) - next) * T::bytes(i) / 16 * 16;
                stop[i] = ((min(next + T::STAGE, end) - next) * T::bytes(i) + 15) & ~15u;
                total += stop[i] - skip[i];
            }
        }
        copy_warp_begin(&barriers[slot], total);
#pragma unroll
        for (uint32_t i = 0; i < T::FIELDS; i++) {
            copy_warp(plane(i) + slot * T::STAGE * T::bytes(i) + skip[i], source[i] + skip[i], stop[i] - skip[i], &barriers[slot]);
            source[i] += T::STAGE * T::bytes(i);
        }
        copy_warp_end(&barriers[slot]);
        issued++;
        next += T::STAGE;
    }

    DEVICE uint8_t* plane(int field) const { return bytes + stages * T::STAGE * T::before(field); }

    // Makes the blocks before `position` of the stream readable.
    DEVICE void await(uint32_t position) {
        while (landed * T::STAGE < position) {
            copy_warp_wait(&barriers[landed & (stages - 1)], landed / stages & 1);
            landed++;
        }
    }
    // Gives the stages that end at or before `position` back: no lane reads them again.
    DEVICE void release(uint32_t position) {
        if ((consumed + 1) * T::STAGE > position) return;
        sync_warp();
        do {
            consumed++;
            issue();
        } while ((consumed + 1) * T::STAGE <= position);
    }
    // Fields of the block at `position`.
    DEVICE void block(uint32_t position, const uint8_t* (&fields)[4]) const {
        uint32_t at = position & (stages * T::STAGE - 1);
#pragma unroll
        for (uint32_t i = 0; i < T::FIELDS; i++) fields[i] = plane(i) + at * T::bytes(i);
    }
};

// The weights of a warp's rows on their way through shared memory.
//
// A warp has a run of consecutive output rows, so that what it needs of a plane is one run of bytes. It is cut into *items*:
// a row, or parts of one where rows are long. A warp has ITEMS slots for them, each filled by asynchronous copies of all
// lanes and filled again as soon as its item has been used. What hides the latency of memory is the bytes on their way to all
// slots of a multiprocessor, not the number of threads.
//
// Copies are 16 bytes wide and rows of narrow planes are not: they begin at the 16 bytes that hold the item's first byte and
// end likewise. Planes must be readable to the next multiple of 16 bytes.
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

template <class T, int ITEMS> struct WeightRing {
    const MatVecParams& p;
    uint32_t part, parts;
    uint32_t row_blocks, item_blocks;
    SharedAddress slots;
    uint32_t slot_bytes;
    uint32_t filling = 0, reading = 0;  // offsets of slots
    // What is asked for next: blocks of the row from `block` on, in rows of `matrix` of which `rows_left` are left.
    uint32_t matrix = 0, rows_left = 0, block = 0;
    const uint8_t* source[T::FIELDS];

    // Bytes that a slot holds of field `field`: with those before and after the item that its copies bring.
    static DEVICE uint32_t room(uint32_t blocks, int field) { return (blocks * T::bytes(field) + 15) / 16 * 16 + (T::bytes(field) % 16 ? 16 : 0); }
    static DEVICE uint32_t room_before(uint32_t blocks, uint32_t field) {
        uint32_t bytes = 0;
#pragma unroll
        for (uint32_t i = 0; i < field; i++) bytes += room(blocks, i);
        return bytes;
    }
    // Shared memory of a warp.
    static DEVICE uint32_t bytes_for(uint32_t item_blocks) { return ITEMS * room_before(item_blocks, T::FIELDS); }

    DEVICE WeightRing(const MatVecParams& p, uint32_t part, uint32_t parts, SharedAddress shared)
        : p(p), part(part), parts(parts), row_blocks(p.k / (T::UNIT * T::UNITS)), item_blocks(p.item_blocks), slots(shared),
          slot_bytes(room_before(p.item_blocks, T::FIELDS)) {
        open();
        for (int i = 0; i < ITEMS; i++) fill();
    }

    // Goes to the first rows of the matrices from `matrix` on.
    DEVICE void open() {
        for (; matrix < p.matrices; matrix++) {
            Span span = span_of(p, matrix, part, parts);
            rows_left = span.end - span.first;
            if (!rows_left) continue;
#pragma unroll
            for (uint32_t i = 0; i < T::FIELDS; i++) source[i] = p.matrix[matrix].plane[i] + uint64_t(span.first) * row_blocks * T::bytes(i);
            return;
        }
    }

    // Asks for the next item. Without one it is an empty group of copies.
    DEVICE void fill() {
        if (rows_left) {
            uint32_t blocks = min(item_blocks, row_blocks - block);
#pragma unroll
            for (uint32_t i = 0; i < T::FIELDS; i++) {
                copy_field(slots + filling + room_before(item_blocks, i), i, blocks * T::bytes(i));
                source[i] += blocks * T::bytes(i);
            }
            block += blocks;
            if (block == row_blocks) {
                block = 0;
                if (!--rows_left) {
                    matrix++;
                    open();
                }
            }
        }
        copy_async_commit();
        filling = after(filling);
    }
    DEVICE void copy_field(SharedAddress to, uint32_t field, uint32_t bytes) const {
        uint32_t before = T::bytes(field) % 16 ? uint32_t(reinterpret_cast<uintptr_t>(source[field])) & 15 : 0, lane = lane_id() * 16;
        const uint8_t* from = source[field] - before + lane;
        to = to + lane;
        bytes += before;
#pragma unroll 4
        for (; bytes >= WARP * 16; bytes -= WARP * 16) {
            copy_async16(to, from);
            to = to + WARP * 16;
            from += WARP * 16;
        }
        if (lane < bytes) copy_async16(to, from);
    }
    DEVICE uint32_t after(uint32_t slot) const { return slot + slot_bytes == ITEMS * slot_bytes ? 0 : slot + slot_bytes; }

    // Makes the next item readable, whose first block is `first` of the matrix, and gives the fields of this block.
    DEVICE void await(uint32_t first, SharedAddress (&fields)[4]) const {
        copy_async_wait<ITEMS - 1>();
        sync_warp();
#pragma unroll
        for (uint32_t i = 0; i < T::FIELDS; i++) {
            uint32_t before = T::bytes(i) % 16 ? first * T::bytes(i) & 15 : 0;
            fields[i] = slots + (reading + room_before(item_blocks, i) + before);
        }
    }
    // No lane reads the item again.
    DEVICE void release() {
        sync_warp();
        fill();
        reading = after(reading);
    }
};

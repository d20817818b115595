// The k largest logits of each row, in order.
//
// A group is 1/1024 of the vocabulary. The k-th largest of the groups' maxima is a bound that k logits reach, so every logit of
// the result does; in a row of a model few others do, and few groups have a second one.
// - `group_maxima` reads all logits, one warp a group: 0.6 MB a row at 152k tokens.
// - `top_select`, one block a row, finds such a bound bit by bit. Groups whose second largest logit stays below it pass their
//   largest on; those few that have more are read again. What passed goes to its rank, the number of those above it.
// Measured on an H200, 152k tokens: 3.7 us for k = 1 and 6 us for k = 128 of one row, 11 us for 16 rows.
// Where too many pass (equal logits en masse, or sorted ones), the bound becomes the k-th largest logit itself, token
// included: exact for any input, two milliseconds then.

#include "common.cuh"
#include "params.cuh"

constexpr uint32_t GROUPS = 1024;
constexpr uint32_t PASSED_MAX = 1024;

// A number that orders as logits are ranked: NaN above everything, both zeros equal. 0 is below all.
DEVICE uint32_t order_of(float x) {
    if (x != x) return 0xffffffffu;
    uint32_t bits = as_bits(add_rn(x, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
DEVICE float logit_of(uint32_t order) { return as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order); }

// The same with the token: no two of a row are equal, and of equal logits the lower token is above.
DEVICE uint64_t key_of(uint32_t order, uint32_t token) { return uint64_t(order) << 32 | (0xffffffffu - token); }

DEVICE uint32_t group_size(uint32_t vocab) { return (vocab + GROUPS - 1) / GROUPS; }

// Calls `use(logit, token)` with the logits of a group, one warp together. Loads of all lanes are under way before the first
// is used.
template <typename Use> DEVICE void each_of_group(const float* logits, uint32_t vocab, uint32_t group, Use use) {
    constexpr uint32_t BATCH = 8;
    uint32_t first = group * group_size(vocab), end = min(first + group_size(vocab), vocab);
    for (uint32_t from = first + lane_id(); from < end; from += BATCH * WARP) {
        float x[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) x[j] = logits[min(from + j * WARP, end - 1)];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++)
            if (from + j * WARP < end) use(x[j], from + j * WARP);
    }
}

// A group's largest logit, the lowest token that has it, and the second largest of the group's logits.
struct Leader {
    uint32_t order, token, second;

    // Tokens come in ascending order.
    DEVICE void add(uint32_t other, uint32_t other_token) {
        bool beaten = other > order;
        second = max(second, beaten ? order : other);
        if (beaten) order = other, token = other_token;
    }

    DEVICE void meet(uint32_t other, uint32_t other_token, uint32_t other_second) {
        bool beaten = other > order || (other == order && other_token < token);
        second = max(beaten ? other_second : second, min(other, order));
        if (beaten) order = other, token = other_token;
    }
};

// What `group_maxima` leaves of a row.
struct Leaders {
    uint32_t order[GROUPS], token[GROUPS], second[GROUPS];
};

// Blocks of x and their warps count the groups, y the rows.
KERNEL __launch_bounds__(256) group_maxima(PARAM TopParams p) {
    start_next();
    wait_previous();
    uint32_t group = blockIdx.x * (blockDim.x / WARP) + warp_id(), row = blockIdx.y;
    Leader leader{0, 0xffffffffu, 0};
    each_of_group(p.logits + uint64_t(row) * p.vocab, p.vocab, group,
                  [&](float x, uint32_t token) { leader.add(order_of(x), token); });
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        leader.meet(shuffle_xor(leader.order, mask), shuffle_xor(leader.token, mask), shuffle_xor(leader.second, mask));
    if (lane_id() > 0) return;
    Leaders& leaders = reinterpret_cast<Leaders*>(p.scratch)[row];
    leaders.order[group] = leader.order, leaders.token[group] = leader.token, leaders.second[group] = leader.second;
}

// A bound that at least k of the threads' values reach and not many more, where there is one; 0 where there are fewer values.
DEVICE uint32_t bound_of_maxima(uint32_t value, uint32_t k) {
    uint32_t bound = 0;
    for (uint32_t bit = 0x80000000u; bit > 0; bit >>= 1) {
        uint32_t reach = uint32_t(sync_block_count(value >= (bound | bit)));
        if (reach < k) continue;
        bound |= bit;
        if (reach <= k + k / 4) break;
    }
    return bound;
}

struct Selection {
    uint32_t groups;  // in `group`
    uint32_t passed;  // may exceed `PASSED_MAX`: then only as many keys are there
    uint32_t counts[2];
    uint32_t group[GROUPS];
    uint64_t key[PASSED_MAX];
};

DEVICE void pass(Selection& s, uint64_t key) {
    uint32_t at = count_up(&s.passed, 1);
    if (at < PASSED_MAX) s.key[at] = key;
}

// Logits that reach a bound of the groups' maxima. Ends with a barrier.
DEVICE void select_by_groups(Selection& s, const TopParams& p, const float* logits, const Leaders& leaders) {
    uint32_t group = threadIdx.x, order = leaders.order[group], token = leaders.token[group], second = leaders.second[group];
    uint32_t bound = bound_of_maxima(order, p.k);
    if (second >= bound)
        s.group[count_up(&s.groups, 1)] = group;
    else if (order >= bound)
        pass(s, key_of(order, token));
    sync_block();
    for (uint32_t g = warp_id(); g < s.groups; g += blockDim.x / WARP)
        each_of_group(logits, p.vocab, s.group[g], [&](float x, uint32_t i) {
            if (order_of(x) >= bound) pass(s, key_of(order_of(x), i));
        });
    sync_block();
}

// The k largest keys exactly, whatever the logits; the bound is found bit by bit over all of them. Ends with a barrier.
DEVICE void select_by_keys(Selection& s, const TopParams& p, const float* logits) {
    uint64_t bound = 0;
    for (int bit = 63; bit >= 0; bit--) {
        uint64_t trial = bound | 1ull << bit;
        uint32_t reach = 0;
#pragma unroll 8
        for (uint32_t i = threadIdx.x; i < p.vocab; i += blockDim.x) reach += key_of(order_of(logits[i]), i) >= trial;
        // The counter of the round before is free again once everybody is here.
        if (threadIdx.x == 0) s.counts[bit & 1] = 0;
        sync_block();
        count_up(&s.counts[bit & 1], reach);
        sync_block();
        if (s.counts[bit & 1] >= p.k) bound = trial;
    }
    if (threadIdx.x == 0) s.passed = 0;
    sync_block();
    for (uint32_t i = threadIdx.x; i < p.vocab; i += blockDim.x)
        if (key_of(order_of(logits[i]), i) >= bound) pass(s, key_of(order_of(logits[i]), i));
    sync_block();
}

// Writes the keys that have fewer than k above them. Eight lanes count for one key.
DEVICE void write_ranked(const Selection& s, uint32_t k, Candidate* out) {
    constexpr uint32_t SHARE = 8;
    uint32_t passed = min(s.passed, PASSED_MAX);
    uint32_t part = threadIdx.x % SHARE, each = blockDim.x / SHARE;
    // All lanes of a warp take the same number of rounds, and warps that have no key none.
    for (uint32_t first = 0; first < passed; first += each) {
        uint32_t c = first + threadIdx.x / SHARE;
        if (first + warp_id() * (WARP / SHARE) >= passed) break;
        uint64_t key = c < passed ? s.key[c] : 0;
        int above = 0;
        for (uint32_t i = part; i < passed; i += SHARE) above += s.key[i] > key;
        for (int mask = 1; mask < int(SHARE); mask *= 2) above += shuffle_xor(above, mask);
        if (c < passed && part == 0 && uint32_t(above) < k)
            out[above] = Candidate{0xffffffffu - uint32_t(key), logit_of(uint32_t(key >> 32))};
    }
}

// One block of `GROUPS` threads a row. Where k exceeds the vocabulary, what is left of the row's output stays as it is.
KERNEL __launch_bounds__(GROUPS) top_select(PARAM TopParams p) {
    __shared__ Selection s;
    start_next();
    if (threadIdx.x == 0) s.groups = s.passed = 0;
    wait_previous();
    uint64_t row = blockIdx.x;
    const float* logits = p.logits + row * p.vocab;
    select_by_groups(s, p, logits, reinterpret_cast<const Leaders*>(p.scratch)[row]);
    if (s.passed > PASSED_MAX) {
        // The count is read by all before it is reset.
        sync_block();
        select_by_keys(s, p, logits);
    }
    write_ranked(s, p.k, p.out + row * p.k);
}

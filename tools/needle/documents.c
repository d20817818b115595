// Documents that hide codes: filler with needles in it, then questions about the needles.
//
// Compiled and called by documents.py. A document is a function of its options, its seed and the library text; nothing is shared
// between calls, so any number of threads may make documents at once.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

enum {
    END_TOKEN = 256, // tokens 0 to 255 are bytes
    NAME_MAX = 9,
    QUESTION_BYTES_MAX = 108, // kind and name twice, seven digits, end token
    NEEDLE_BYTES_MAX = 46, // with the separator before it
    QUESTIONS_MAX = 256,
    NEEDLES_MAX = 512,
    ATTEMPTS_MAX = 1000, // at a name that is not taken
};

// What a byte counts as in the loss.
enum { NO_LOSS, TEXT, WORDING, DIGIT };

// Mirrored by `Options` in documents.py.
struct options {
    int32_t length; // tokens of a document, exactly
    int32_t needles_min, needles_max;
    int32_t questions_min, questions_max;
    int32_t kind; // of all needles, or -1
    int32_t position_max; // positions stay below
    float depth; // of needle 0: 0 is the first byte, 1 the last before the questions; negative: as in training
    float first; // chance that needle 0 is the first sentence, as in training
    float near_names; // share of names that differ by one letter from another
    float absent; // share of questions about a name that is nowhere
    float short_answers; // share of questions
    float library; // share of filler that is library text; negative: as in training
    float jump; // chance that positions jump ahead after a sentence, in half of the documents
    float text_loss; // share of TEXT bytes that count; the others become NO_LOSS
};

// --- random numbers: splitmix64 ---

struct random {
    uint64_t state;
};

static uint64_t next(struct random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double uniform(struct random *r) { return (next(r) >> 11) * 0x1p-53; }

static int chance(struct random *r, double p) { return uniform(r) < p; }

static int below(struct random *r, int n) { return (int)(uniform(r) * n); }

static int between(struct random *r, int low, int high) { return low + below(r, high - low + 1); }

// --- words ---

static const char *const KINDS[] = {"access", "archive", "customs", "door", "engine", "garage",
                                    "harbour", "launch", "locker", "radio", "station", "vault"};

static const char *const NOUNS[] = {
    "actor", "airport", "apple", "arrow", "artist", "attic", "baker", "balcony", "barn", "barrel", "basket", "beach", "bell", "bench",
    "bicycle", "blanket", "boat", "book", "bottle", "bridge", "broom", "bucket", "butcher", "cabin", "camera", "candle", "canoe",
    "captain", "carpet", "cart", "castle", "cat", "cellar", "chair", "chapel", "chimney", "circus", "clerk", "clock", "cloud", "coat",
    "coin", "cook", "corridor", "cottage", "crow", "cup", "curtain", "dancer", "desk", "doctor", "dog", "donkey", "drawer", "drum",
    "engineer", "farmer", "fence", "ferry", "fiddle", "field", "fisherman", "flag", "flute", "forest", "fountain", "fox", "garden",
    "gate", "ghost", "glove", "goat", "guard", "guitar", "hammer", "hat", "hedge", "hill", "horse", "hotel", "island", "jacket", "jar",
    "judge", "kettle", "key", "kitchen", "kite", "ladder", "lake", "lamp", "lantern", "letter", "library", "lighthouse", "lizard",
    "map", "market", "mayor", "meadow", "merchant", "mill", "miner", "mirror", "museum", "needle", "nurse", "office", "orchard",
    "oven", "owl", "painter", "parcel", "pencil", "piano", "picture", "pilot", "pocket", "poet", "pond", "porter", "potter", "printer",
    "rabbit", "river", "road", "roof", "rope", "sailor", "school", "ship", "shoe", "shovel", "singer", "spoon", "stable", "stove",
    "student", "suitcase", "table", "tailor", "teacher", "tent", "tower", "train", "tree", "trumpet", "tunnel", "umbrella", "village",
    "violin", "wagon", "waiter", "wall", "watch", "well", "wheel", "window", "wolf"};

static const char *const ADJECTIVES[] = {
    "ancient", "angry", "blue", "bright", "brittle", "broad", "broken", "brown", "calm", "careful", "cheap", "clean", "clever", "cold",
    "crooked", "curious", "damp", "dark", "deep", "distant", "dry", "dull", "dusty", "early", "elegant", "empty", "faded", "famous",
    "flat", "foreign", "forgotten", "fragile", "fresh", "friendly", "gentle", "golden", "green", "grey", "heavy", "hidden", "hollow",
    "honest", "huge", "hungry", "idle", "iron", "kind", "large", "lazy", "light", "little", "local", "lonely", "long", "loud", "lucky",
    "modern", "muddy", "narrow", "new", "noisy", "old", "orange", "pale", "patient", "plain", "polite", "proud", "purple", "quick",
    "quiet", "red", "round", "rusty", "sharp", "short", "shy", "silent", "silver", "slow", "small", "soft", "square", "steep",
    "strange", "striped", "tall", "tidy", "tired", "warm", "wet", "white", "wooden", "yellow", "young"};

static const char *const VERBS[] = {
    "admired", "avoided", "bought", "borrowed", "broke", "brought", "built", "buried", "carried", "caught", "chased", "chose",
    "cleaned", "closed", "copied", "counted", "covered", "crossed", "described", "discovered", "drew", "dropped", "examined",
    "exchanged", "feared", "fetched", "followed", "found", "guarded", "heard", "hid", "hired", "ignored", "invited", "kept", "knew",
    "left", "lifted", "liked", "lost", "loved", "measured", "mended", "met", "missed", "moved", "noticed", "opened", "ordered",
    "painted", "passed", "photographed", "praised", "preferred", "pulled", "pushed", "reached", "remembered", "repaired", "returned",
    "saw", "sketched", "sold", "stole", "studied", "taught", "thanked", "touched", "trusted", "understood", "visited", "warned",
    "washed", "watched", "weighed", "wrapped"};

static const char *const PLACES[] = {
    "Accra", "Athens", "Bergen", "Bilbao", "Boston", "Bristol", "Cairo", "Calgary", "Cork", "Dakar", "Delhi", "Denver", "Dover", "Dublin",
    "Geneva", "Ghent", "Hamburg", "Hanoi", "Havana", "Helsinki", "Istanbul", "Kyoto", "Lagos", "Leeds", "Lima", "Lisbon", "Lyon",
    "Madrid", "Malta", "Milan", "Montreal", "Nairobi", "Naples", "Odessa", "Oslo", "Paris", "Perth", "Porto", "Prague", "Quito", "Riga",
    "Rome", "Seoul", "Seville", "Sofia", "Split", "Tallinn", "Tunis", "Turin", "Vienna", "Warsaw", "York"};

static const char *const FIRST_NAMES[] = {
    "Ada", "Agnes", "Albert", "Alice", "Amir", "Anna", "Arthur", "Bella", "Boris", "Carla", "Carlos", "Clara", "Daniel", "David", "Dora",
    "Edith", "Elena", "Emil", "Emma", "Eric", "Felix", "Fiona", "Frank", "George", "Greta", "Hannah", "Henry", "Hugo", "Ida", "Igor",
    "Irene", "Ivan", "Jack", "Jane", "Julia", "Karl", "Kate", "Laura", "Leo", "Lucy", "Magda", "Maria", "Mark", "Martha", "Maya",
    "Nadia", "Nina", "Noah", "Olga", "Oscar", "Otto", "Paula", "Peter", "Ravi", "Rosa", "Ruth", "Samuel", "Sara", "Simon", "Sven",
    "Tara", "Theo", "Tom", "Vera", "Victor", "Wanda", "Yusuf", "Zoe"};

static const char *const CLAUSES[] = {
    "after breakfast", "after the concert", "as everyone expected", "at dawn", "because it was late", "before the rain came",
    "before the war", "behind the station", "during the long winter", "every other Sunday", "for no good reason", "for the last time",
    "in spite of the fog", "in the evening", "just in time", "on the way home", "once again", "to the surprise of many",
    "under the old oak", "until the lights went out", "when nobody was looking", "while the others slept", "with great care",
    "without a word"};

static const char *const CODE_NAMES[] = {
    "ACORN", "AMBER", "ANCHOR", "ANVIL", "APOLLO", "ASPEN", "ATLAS", "AURORA", "AVALON", "BADGER", "BANJO", "BASALT", "BEACON", "BISON",
    "BRAMBLE", "BRONZE", "CACTUS", "CANYON", "CEDAR", "CINDER", "CLOVER", "COBALT", "COMET", "CONDOR", "COPPER", "CORAL", "COUGAR",
    "CRATER", "CYPRESS", "DAHLIA", "DELTA", "DENIM", "DRAGON", "DUNE", "EAGLE", "EBONY", "ECLIPSE", "EMBER", "FALCON", "FERN", "FJORD",
    "FLINT", "FOSSIL", "GALAXY", "GARNET", "GEYSER", "GINGER", "GLACIER", "GRANITE", "HARBOR", "HAZEL", "HERON", "HORIZON", "INDIGO",
    "IRIS", "IVORY", "JADE", "JAGUAR", "JASMINE", "JUNIPER", "KESTREL", "LAGOON", "LAUREL", "LEMON", "LOTUS", "LUNAR", "LYNX", "MAGNET",
    "MAPLE", "MARBLE", "MARLIN", "METEOR", "MOHAIR", "NEBULA", "NECTAR", "NICKEL", "NIMBUS", "NUTMEG", "ONYX", "OPAL", "ORBIT", "ORCHID",
    "OSPREY", "OTTER", "PEBBLE", "PEPPER", "PHOENIX", "PLANET", "PRISM", "PUMA", "QUARTZ", "QUIVER", "RAVEN", "SABLE", "SAFFRON",
    "SIERRA", "SPRUCE", "TALON", "TOPAZ", "TUNDRA", "VELVET", "WALNUT", "WILLOW", "ZENITH", "ZEPHYR"};

// %a adjective, %c clause, %f first name, %n noun, %p place, %v verb; %U a name in capitals, %Y year, %H clock time,
// %G page, %M price, %D small number.
static const char *const TEMPLATES[] = {
    "The %a %n %v the %n.",
    "The %n of %p %v a %a %n %c.",
    "%f %v the %a %n %c.",
    "%f and %f %v the %n near %p.",
    "In %Y the %n of %p was still %a.",
    "At %H the %n %v the %a %n.",
    "See page %G for the %n and the %n.",
    "The %a %n cost %M in %p.",
    "%f paid %M for a %n and %D %ns.",
    "%U was the name of the %n.",
    "The letter to %U never left %p.",
    "%f asked %U about the %a %n.",
    "%f forgot the code of the %n.",
    "Nobody in %p knew the code of the %a %n.",
    "There were %D %ns in the %a %n.",
    "A %n without a %n is like a %n without a %n.",
    "\"Where is the %n?\" asked %f.",
    "\"The %n is %a,\" said %f, \"but the %n is not.\"",
    "%f wrote that the %n was %a and the %n was %a.",
    "Between %p and %p the %n was %a.",
    "On the %n lay a %a %n, a %n and a %n.",
    "It was %H when %f %v the %n.",
    "The %n that %f %v was %a.",
    "No %n in %p was as %a as this one.",
    "Every %n needs a %a %n.",
    "%f came back from %p with a %a %n.",
    "The %n %v the %n, and the %n %v the %n.",
    "Since %Y nobody had %v a %n like that.",
    "The people of %p %v their %n %c.",
    "The report of %Y has %G pages about the %n.",
    "Why the %n %v the %n is not known.",
    "If the %n is %a, the %n will be %a too.",
    "%f lived in %p until %Y, next to the %a %n.",
    "A %a %n stood in front of the %a %n.",
    "The train to %p left at %H.",
    "The %n opens at %H and closes at %H.",
    "%f, who %v the %n, %v the %n as well.",
    "They sold %D %ns for %M.",
    "First %f %v the %n, then %f %v the %n.",
    "The %n was in the %n, and the %n was in the %n.",
    "It was a %a, %a %n.",
    "%f had never seen such a %a %n %c.",
    "The ship %U reached %p in %Y.",
    "In the %n, %c, %f %v a %n.",
    "Chapter %D tells how %f %v the %n of %p.",
    "The road from %p to %p is %a and %a.",
};

static const char *pick(struct random *r, const char *const *words, int count) { return words[below(r, count)]; }

#define PICK(r, words) pick(r, words, COUNT(words))

// --- names ---

static void new_name(struct random *r, char *name) {
    static const char CONSONANTS[] = "BCDFGHJKLMNPQRSTVWXZ", VOWELS[] = "AEIOUY";
    double style = uniform(r);
    int length = between(r, 4, 8);
    if (style < 0.2) {
        strcpy(name, PICK(r, CODE_NAMES));
        return;
    }
    for (int i = 0; i < length; i++) {
        if (style < 0.5)
            name[i] = i % 2 ? VOWELS[below(r, COUNT(VOWELS) - 1)] : CONSONANTS[below(r, COUNT(CONSONANTS) - 1)];
        else
            name[i] = (char)('A' + below(r, 26));
    }
    name[length] = 0;
}

// `from` with one letter changed, swapped with the next, added or dropped.
static void near_name(struct random *r, const char *from, char *name) {
    int length = (int)strlen(from), at = below(r, length);
    strcpy(name, from);
    switch (below(r, 4)) {
    case 0:
        name[at] = (char)('A' + below(r, 26));
        break;
    case 1:
        at = below(r, length - 1);
        name[at] = from[at + 1];
        name[at + 1] = from[at];
        break;
    case 2:
        if (length == NAME_MAX) break;
        memmove(name + at + 1, name + at, (size_t)(length - at + 1));
        name[at] = (char)('A' + below(r, 26));
        break;
    default:
        if (length > 3) memmove(name + at, name + at + 1, (size_t)(length - at));
    }
}

struct needle {
    char name[NAME_MAX + 1];
    char digits[8];
    int kind;
    double place; // bytes of filler before it
};

// A name that none of the needles has; near one of them with the given chance.
static void free_name(struct random *r, const struct needle *needles, int count, double near, char *name) {
    int is_near = count > 0 && chance(r, near);
    for (int attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
        if (is_near)
            near_name(r, needles[below(r, count)].name, name);
        else
            new_name(r, name);
        int taken = 0;
        for (int i = 0; i < count; i++) taken |= !strcmp(name, needles[i].name);
        if (!taken) return;
    }
}

// --- output ---

struct output {
    int32_t *tokens, *positions;
    uint8_t *losses;
    int count, position;
};

static void put_token(struct output *o, int token, int loss) {
    o->tokens[o->count] = token;
    o->positions[o->count] = o->position++;
    o->losses[o->count++] = (uint8_t)loss;
}

static void put(struct output *o, const char *text, int loss) {
    for (; *text; text++) put_token(o, (uint8_t)*text, loss);
}

// --- sentences ---

// Fills the template; returns the bytes written, without a 0 at the end.
static int sentence(struct random *r, char *text) {
    char *at = text;
    char name[NAME_MAX + 1];
    for (const char *t = PICK(r, TEMPLATES); *t; t++) {
        if (*t != '%') {
            *at++ = *t;
            continue;
        }
        switch (*++t) {
        case 'a': at += sprintf(at, "%s", PICK(r, ADJECTIVES)); break;
        case 'c': at += sprintf(at, "%s", PICK(r, CLAUSES)); break;
        case 'f': at += sprintf(at, "%s", PICK(r, FIRST_NAMES)); break;
        case 'n': at += sprintf(at, "%s", PICK(r, NOUNS)); break;
        case 'p': at += sprintf(at, "%s", PICK(r, PLACES)); break;
        case 'v': at += sprintf(at, "%s", PICK(r, VERBS)); break;
        case 'Y': at += sprintf(at, "%d", between(r, 1500, 2099)); break;
        case 'H': at += sprintf(at, "%d:%02d", below(r, 24), below(r, 60)); break;
        case 'G': at += sprintf(at, "%d", between(r, 1, 999)); break;
        case 'M': at += sprintf(at, "$%d.%02d", below(r, 500), below(r, 100)); break;
        case 'D': at += sprintf(at, "%d", between(r, 2, 60)); break;
        case 'U': new_name(r, name); at += sprintf(at, "%s", name); break;
        }
    }
    return (int)(at - text);
}

// 60 to 330 bytes of `library` from the start of a line; about three times as long as a sentence.
static int slice(struct random *r, const uint8_t *library, int64_t library_bytes, char *text) {
    int bytes = between(r, 60, 330);
    int64_t from = (int64_t)(uniform(r) * (double)(library_bytes - 1024));
    for (int skipped = 0; skipped < 200 && library[from] != '\n'; skipped++) from++;
    memcpy(text, library + from + 1, (size_t)bytes);
    return bytes;
}

static const char *separator(struct random *r) {
    double u = uniform(r);
    return u < 0.85 ? " " : u < 0.97 ? "\n" : "\n\n";
}

// --- documents ---

struct filler {
    const uint8_t *library;
    int64_t library_bytes;
    double slices; // share of pieces that are library text
    int total, written; // bytes
};

// Fillers for one more piece, cut where the filler is used up.
static void put_filler(struct random *r, struct output *o, struct filler *f) {
    char text[1024];
    int bytes = 0;
    if (o->count) bytes = sprintf(text, "%s", separator(r));
    if (f->library_bytes > 4096 && chance(r, f->slices))
        bytes += slice(r, f->library, f->library_bytes, text + bytes);
    else
        bytes += sentence(r, text + bytes);
    if (bytes > f->total - f->written) bytes = f->total - f->written;
    for (int i = 0; i < bytes; i++) put_token(o, (uint8_t)text[i], TEXT);
    f->written += bytes;
}

static void put_needle(struct output *o, const struct needle *n, const char *before) {
    put(o, before, TEXT);
    put(o, "The ", TEXT);
    put(o, KINDS[n->kind], NO_LOSS);
    put(o, " code of ", TEXT);
    put(o, n->name, NO_LOSS);
    put(o, " is ", TEXT);
    put(o, n->digits, NO_LOSS);
    put(o, ".", TEXT);
}

// A question and its answer; a needle without digits is nowhere in the document.
static void put_question(struct output *o, const struct needle *n, int is_short) {
    const char *kind = KINDS[n->kind];
    put(o, "\nQuestion: What is the ", TEXT);
    put(o, kind, NO_LOSS);
    put(o, " code of ", TEXT);
    put(o, n->name, NO_LOSS);
    put(o, is_short ? "?\nShort answer:" : "?\nAnswer:", TEXT);
    if (!is_short) {
        put(o, " The ", WORDING);
        put(o, kind, WORDING);
        put(o, " code of ", WORDING);
        put(o, n->name, WORDING);
        put(o, " is", WORDING);
    }
    put(o, " ", WORDING);
    if (n->digits[0]) {
        put(o, n->digits, DIGIT);
    } else {
        // Its first letter is the decision that digits are elsewhere.
        put(o, "u", DIGIT);
        put(o, "nknown", WORDING);
    }
    put(o, ".", WORDING);
    put_token(o, END_TOKEN, WORDING);
}

// Where needle 0 goes: often at the ends, which uniform places hardly ever are.
static double first_place(struct random *r, const struct options *o, int total) {
    if (o->depth >= 0) return o->depth * total;
    if (chance(r, o->first)) return 0;
    double u = uniform(r);
    if (u < 0.19) return total;
    return (u < 0.31 ? 0.02 : 1.0) * uniform(r) * total;
}

static int make_needles(struct random *r, const struct options *o, struct needle *needles, int count) {
    int bytes = 0;
    for (int i = 0; i < count; i++) {
        struct needle *n = &needles[i];
        free_name(r, needles, i, o->near_names, n->name);
        n->kind = o->kind >= 0 ? o->kind : below(r, COUNT(KINDS));
        int digits = between(r, 4, 7);
        for (int d = 0; d < digits; d++) n->digits[d] = (char)('0' + below(r, 10));
        n->digits[digits] = 0;
        bytes += (int)(strlen("The  code of  is .") + strlen(KINDS[n->kind]) + strlen(n->name)) + digits + 1;
    }
    return bytes;
}

// Chooses what is asked, needle 0 among it, in random order.
static void put_questions(struct random *r, const struct options *o, struct output *out, const struct needle *needles, int needle_count,
                          int count) {
    int order[NEEDLES_MAX];
    for (int i = 0; i < needle_count; i++) order[i] = i;
    for (int i = 1; i < count; i++) {
        int j = between(r, i, needle_count - 1), swap = order[i];
        order[i] = order[j], order[j] = swap;
    }
    int place = below(r, count);
    order[0] = order[place], order[place] = 0;
    for (int i = 0; i < count; i++) {
        struct needle asked = needles[order[i]];
        if (chance(r, o->absent)) {
            free_name(r, needles, needle_count, 0.5, asked.name);
            asked.digits[0] = 0;
        }
        put_question(out, &asked, chance(r, o->short_answers));
    }
}

static void jump(struct random *r, const struct options *o, struct output *out) {
    double room = o->position_max - out->position - (o->length - out->count);
    if (room > 1 && chance(r, o->jump)) out->position += (int)exp(uniform(r) * log(room));
}

static void document(const struct options *o, struct random *r, const uint8_t *library, int64_t library_bytes, struct output *out) {
    struct needle needles[NEEDLES_MAX];
    int question_count = between(r, o->questions_min, o->questions_max), needle_count = between(r, o->needles_min, o->needles_max);
    while (question_count > 1 && question_count * (QUESTION_BYTES_MAX + NEEDLE_BYTES_MAX) > o->length) question_count--;
    int room = (o->length - question_count * QUESTION_BYTES_MAX) / NEEDLE_BYTES_MAX;
    if (needle_count > room) needle_count = room;
    if (needle_count < question_count) needle_count = question_count;

    int needle_bytes = make_needles(r, o, needles, needle_count);
    int32_t tokens[QUESTIONS_MAX * QUESTION_BYTES_MAX], positions[QUESTIONS_MAX * QUESTION_BYTES_MAX];
    uint8_t losses[QUESTIONS_MAX * QUESTION_BYTES_MAX];
    struct output questions = {tokens, positions, losses, 0, 0};
    put_questions(r, o, &questions, needles, needle_count, question_count);

    double share = o->library;
    if (share < 0) {
        double u = uniform(r);
        share = u < 0.1 ? 0.9 : u < 0.2 ? 0.1 : 0.0;
    }
    struct filler filler = {library, library_bytes, share / 3 / (share / 3 + 1 - share), 0, 0};
    // A needle that begins the document has no separator, so that filler gets its byte.
    int jumps = chance(r, 0.5);
    filler.total = o->length - needle_bytes - questions.count;
    for (int i = 0; i < needle_count; i++)
        needles[i].place = i ? (0.001 + 0.998 * uniform(r)) * filler.total : first_place(r, o, filler.total);
    for (int i = 1; i < needle_count; i++) // by place; insertion keeps needle 0 before its equals
        for (int j = i; j > 0 && needles[j].place < needles[j - 1].place; j--) {
            struct needle swap = needles[j];
            needles[j] = needles[j - 1], needles[j - 1] = swap;
        }

    for (int i = 0; i < needle_count; i++) {
        while (filler.written < filler.total && filler.written < needles[i].place) {
            put_filler(r, out, &filler);
            if (jumps) jump(r, o, out);
        }
        if (!out->count) filler.total++;
        put_needle(out, &needles[i], !out->count ? "" : chance(r, 0.85) ? " " : "\n");
        if (jumps) jump(r, o, out);
    }
    while (filler.written < filler.total) put_filler(r, out, &filler);
    for (int i = 0; i < questions.count; i++) put_token(out, questions.tokens[i], questions.losses[i]);
}

// Writes `count` documents `[document x token]`, the first with `seed`, each later one with a seed of its own. Returns 0, or 1 for
// options that do not fit.
int documents(const struct options *o, uint64_t seed, int32_t count, const uint8_t *library, int64_t library_bytes, int32_t *tokens,
              int32_t *positions, uint8_t *losses) {
    if (o->length < QUESTION_BYTES_MAX + NEEDLE_BYTES_MAX || o->position_max < o->length || o->kind >= COUNT(KINDS)) return 1;
    if (o->questions_min < 1 || o->questions_max < o->questions_min || o->questions_max > QUESTIONS_MAX) return 1;
    if (o->needles_min < 1 || o->needles_max < o->needles_min || o->needles_max > NEEDLES_MAX) return 1;
    for (int32_t i = 0; i < count; i++) {
        int64_t at = (int64_t)i * o->length;
        struct output out = {tokens + at, positions + at, losses + at, 0, 0};
        struct random r = {seed + (uint64_t)i};
        r.state = next(&r); // neighbouring seeds would share all but one of their numbers
        document(o, &r, library, library_bytes, &out);
        if (out.count != o->length) return 1;
        out.losses[0] = NO_LOSS; // nothing comes before it
        if (o->text_loss < 1)
            for (int t = 0; t < out.count; t++)
                if (out.losses[t] == TEXT && !chance(&r, o->text_loss)) out.losses[t] = NO_LOSS;
    }
    return 0;
}

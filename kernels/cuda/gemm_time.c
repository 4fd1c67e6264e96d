/* gemm_time: chooses among the algorithms that the library offers for a product by time.
 *
 * A product is tuned once, by prepare, before the first step: from the file of this GPU, else
 * by launching each offer on the product's own operands, filled with random numbers, as a GPU at its
 * power limit computes zeros faster. The fastest of a short measurement are measured again for
 * longer. The library's first offer stays unless another one is faster by CLEARLY, so that noise
 * does not change results between runs. The file is used only for the same GPU, driver
 * and library: then the library's list is the same, too.
 *
 * Another choice may add in another order, so it changes the last bits of a product
 * (docs/decisions/gpu-products.md).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/cuda/gemm_library.h"

/* All candidates are measured once with LAUNCHES timed launches; then the FINALISTS fastest and the
 * library's first offer FINAL_MEASUREMENTS times, of which the shortest counts, with FINAL_LAUNCHES
 * or as many as FINAL_MS allow. One launch before each measurement is not timed: it hides the latency
 * of the host. */
enum { LAUNCHES = 3, FINALISTS = 4, FINAL_MEASUREMENTS = 2 };
#ifdef HD_CUDASIM
enum { FINAL_LAUNCHES = 3 }; /* each takes the time that the test gives it */
#else
enum { FINAL_LAUNCHES = 20 };
#endif
static const float FINAL_MS = 20; /* for the launches of one measurement */
/* largest fraction of the first offer's time at which another offer replaces it */
static const float CLEARLY = 0.98f;
/* keys of the random numbers in the two factors */
enum { FACTOR_A_KEY = 1, FACTOR_B_KEY };

/* ---- the file ---- */

static enum hd_status name_device(const struct hd_backend *cuda, char ret_uuid[HD_CUDA_UUID_MAX],
                                  char ret_device[HD_CUDA_CHOICES_DEVICE_MAX])
{
    struct cudaDeviceProp device;
    char release[HD_CUDA_RELEASE_MAX];
    int driver = 0;
    enum hd_status st = hd_cuda_check(cudaGetDeviceProperties(&device, cuda->device),
                                      "cannot read a GPU's properties");

    if (!st)
        st = hd_cuda_check(cudaDriverGetVersion(&driver), "cannot read the driver's version");
    if (st)
        return st;
    hd_cuda_spell_uuid((const unsigned char *)device.uuid.bytes, hd_cuda_is_slice(device.name),
                       ret_uuid);
    hd_cuda_read_release(release);
    (void)snprintf(ret_device, HD_CUDA_CHOICES_DEVICE_MAX, "%s %s driver %d.%d%s%s %s", ret_uuid,
                   cuda->traits.isa, driver / 1000, driver % 1000 / 10, release[0] ? " " : "",
                   release, cuda->traits.library);
    return HD_OK;
}

/* Reads the choices of the file; returns none if the file is missing or unusable. */
static void read_file(const struct hd_cuda_gemm_state *gemm, struct hd_choice *ret_choices,
                      int *ret_count)
{
    struct hd_text text = {0};
    enum hd_status st = hd_file_read(gemm->path, HD_CUDA_CHOICES_BYTES_MAX, &text);

    *ret_count = 0;
    if (!st)
        st = hd_cuda_choices_parse(text.data ? text.data : "", text.len_bytes, gemm->device,
                                   ret_choices, ret_count);
    if (st && st != HD_NOT_FOUND) {
        hd_log(st == HD_CONFLICT ? HD_LOG_INFO : HD_LOG_WARN,
               "gemm: %s is ignored: %s; products are timed anew", gemm->path, hd_err_message());
        *ret_count = 0;
    }
    hd_text_free(&text);
}

enum hd_status hd_cuda_choices_open(const struct hd_backend *cuda, struct hd_cuda_gemm_state *gemm)
{
    struct hd_text path = {0};
    char uuid[HD_CUDA_UUID_MAX];
    enum hd_status st;

    if (!cuda->options.choices_dir || cuda->options.deterministic)
        return HD_OK;
    st = name_device(cuda, uuid, gemm->device);
    if (st)
        return st;
    hd_text_add(&path, "%s/%s", cuda->options.choices_dir, uuid);
    gemm->kept = malloc(HD_CUDA_CHOICES_MAX * sizeof gemm->kept[0]);
    if (path.failed || !gemm->kept) {
        hd_text_free(&path);
        return hd_err(HD_NO_MEMORY, "no memory for the choices among cuBLASLt's algorithms");
    }
    gemm->path = path.data;
    read_file(gemm, gemm->kept, &gemm->kept_count);
    return HD_OK;
}

void hd_cuda_choices_close(struct hd_cuda_gemm_state *gemm)
{
    free(gemm->path);
    free(gemm->kept);
    free(gemm->choices);
}

/* ---- choosing ---- */

/* Returns the key of a product in the file: a hash of everything that changes the library's offers
 * (shape, scratch budget, tf32, kind of GPU, driver, library). The number of offers requested does
 * not. */
static uint64_t name_product(const struct hd_backend *cuda, const struct cuda_product *p)
{
    const int64_t limits[] = {cuda->traits.gemm_scratch_bytes, cuda->options.tf32};
    const char *kind = strchr(cuda->gemm->device, ' '); /* skip the UUID, which is the first word */
    struct hd_hash hash;

    hd_hash_begin(&hash);
    hd_hash_add(&hash, &p->shape, sizeof p->shape);
    hd_hash_add(&hash, limits, sizeof limits);
    if (kind)
        hd_hash_add(&hash, kind, strlen(kind));
    return hd_hash_value(&hash);
}

struct stopwatch {
    cudaStream_t stream;
    cudaEvent_t begin, end;
};

/* Times a candidate algorithm. Sets *ret_ms to the mean duration of a launch, and *ret_failed to the
 * library's status if it refused the algorithm. */
static enum hd_status measure(const struct hd_backend *cuda, const struct cuda_product *p,
                              int candidate, const struct hd_gemm_args *args, int launches,
                              const struct stopwatch *watch, float *ret_ms,
                              cublasStatus_t *ret_failed)
{
    cublasStatus_t failed = hd_cuda_product_launch(cuda, p, candidate, args, watch->stream);
    enum hd_status st = HD_OK;
    float ms = 0;

    if (!failed)
        st = hd_cuda_check(cudaEventRecord(watch->begin, watch->stream), "cannot record an event");
    for (int i = 0; i < launches && !st && !failed; i++)
        failed = hd_cuda_product_launch(cuda, p, candidate, args, watch->stream);
    *ret_failed = failed;
    if (st || failed)
        return st;
    st = hd_cuda_check(cudaEventRecord(watch->end, watch->stream), "cannot record an event");
    if (!st)
        st = hd_cuda_check(cudaEventSynchronize(watch->end), HD_CUDA_LAUNCHED_FAILED);
    if (!st)
        st = hd_cuda_check(cudaEventElapsedTime(&ms, watch->begin, watch->end),
                           "cannot read the time between two events");
    *ret_ms = ms / (float)launches;
    return st;
}

/* Times a candidate and lowers *best_ms to its time. A candidate that the library refuses is marked
 * as refused. */
static enum hd_status time_candidate(const struct hd_backend *cuda, struct cuda_product *p,
                                     int candidate, const struct hd_gemm_args *args, int launches,
                                     const struct stopwatch *watch, float *best_ms)
{
    cublasStatus_t failed = CUBLAS_STATUS_SUCCESS;
    float ms = 0;
    const enum hd_status st = measure(cuda, p, candidate, args, launches, watch, &ms, &failed);

    if (!st && hd_cuda_product_is_refused(failed))
        hd_cuda_product_refuse(cuda, p, candidate, args, failed);
    else if (!st && failed)
        return hd_err(HD_INTERNAL, "gemm: %s failed while its algorithms were timed: %s",
                      cuda->traits.library, cublasLtGetStatusString(failed));
    else if (!st && ms < *best_ms)
        *best_ms = ms;
    return st;
}

/* Returns the candidate with the least time among those not refused and, if `among` is given, marked
 * there; -1: none. */
static int find_fastest(const struct cuda_product *p, const float *ms, const bool *among)
{
    int fastest = -1;

    for (int i = 0; i < p->candidate_count; i++)
        if (!p->candidates[i].refused && (!among || among[i]) &&
            (fastest < 0 || ms[i] < ms[fastest]))
            fastest = i;
    return fastest;
}

static int find_first(const struct cuda_product *p)
{
    for (int i = 0; i < p->candidate_count; i++)
        if (!p->candidates[i].refused)
            return i;
    return -1;
}

/* Marks the candidates that are measured again, and sets *ret_launches to the launches of each. */
static void choose_finalists(const struct cuda_product *p, const float *ms, bool *ret_finals,
                             int *ret_launches)
{
    bool others[HD_CUDA_CANDIDATES_MAX];
    int fastest = find_fastest(p, ms, NULL);

    *ret_launches = fastest < 0 || ms[fastest] * FINAL_LAUNCHES < FINAL_MS
                        ? FINAL_LAUNCHES
                        : (int)(FINAL_MS / ms[fastest]);
    if (*ret_launches < LAUNCHES)
        *ret_launches = LAUNCHES;
    for (int i = 0; i < p->candidate_count; i++)
        others[i] = true;
    for (int n = 0; n < FINALISTS && fastest >= 0; n++) {
        ret_finals[fastest] = true;
        others[fastest] = false;
        fastest = find_fastest(p, ms, others);
    }
    if (find_first(p) >= 0)
        ret_finals[find_first(p)] = true;
}

/* Times the candidate algorithms of a product and sets p->choice to the fastest. Candidates are
 * timed in turns, so that a change of the GPU's clock affects all. */
static enum hd_status time_candidates(const struct hd_backend *cuda, struct cuda_product *p,
                                      const struct hd_gemm_args *args,
                                      const struct stopwatch *watch)
{
    float ms[HD_CUDA_CANDIDATES_MAX];
    bool finals[HD_CUDA_CANDIDATES_MAX] = {false};
    int launches = 0, first, fastest;
    enum hd_status st = HD_OK;

    for (int i = 0; i < p->candidate_count; i++)
        ms[i] = INFINITY;
    for (int i = 0; i < p->candidate_count && !st; i++)
        if (!p->candidates[i].refused)
            st = time_candidate(cuda, p, i, args, LAUNCHES, watch, &ms[i]);
    if (st)
        return st;
    choose_finalists(p, ms, finals, &launches);
    for (int i = 0; i < p->candidate_count; i++)
        ms[i] = INFINITY;
    for (int i = 0; i < FINAL_MEASUREMENTS * p->candidate_count && !st; i++) {
        const int candidate = i % p->candidate_count;

        if (finals[candidate] && !p->candidates[candidate].refused)
            st = time_candidate(cuda, p, candidate, args, launches, watch, &ms[candidate]);
    }
    first = find_first(p);
    fastest = find_fastest(p, ms, NULL);
    if (!st && fastest >= 0)
        p->choice = ms[fastest] < CLEARLY * ms[first] ? fastest : first;
    return st;
}

/* Fills the factors of a product with random numbers. */
static enum hd_status fill_factors(const struct hd_backend *cuda, const struct cuda_product *p,
                                   const struct hd_gemm_args *args, cudaStream_t handle)
{
    const struct cuda_shape *s = &p->shape;
    struct hd_cuda_stream stream = {.cuda = (struct hd_backend *)(uintptr_t)cuda, .handle = handle};
    const enum hd_dtype dtype = s->fp8_a ? HD_U8 : (enum hd_dtype)s->ab_dtype;
    enum hd_status st =
        hd_cuda_gemm_random(&stream, (void *)(uintptr_t)args->a, dtype, s->trans_a ? s->K : s->M,
                            s->trans_a ? s->M : s->K, s->lda, FACTOR_A_KEY);

    return st ? st
              : hd_cuda_gemm_random(&stream, (void *)(uintptr_t)args->b, dtype,
                                    s->trans_b ? s->N : s->K, s->trans_b ? s->K : s->N, s->ldb,
                                    FACTOR_B_KEY);
}

static enum hd_status choose_by_time(const struct hd_backend *cuda, struct cuda_product *p,
                                     const struct hd_gemm_args *args)
{
    struct stopwatch watch = {0};
    enum hd_status st =
        hd_cuda_check(cudaStreamCreateWithPriority(&watch.stream, cudaStreamNonBlocking, 0),
                      "cannot create a stream");

    if (!st)
        st = hd_cuda_check(cudaEventCreateWithFlags(&watch.begin, cudaEventDefault),
                           "cannot create an event");
    if (!st)
        st = hd_cuda_check(cudaEventCreateWithFlags(&watch.end, cudaEventDefault),
                           "cannot create an event");
    if (!st)
        st = fill_factors(cuda, p, args, watch.stream);
    if (!st)
        st = time_candidates(cuda, p, args, &watch);
    if (watch.stream) { /* wait for the launches: the operands are used next */
        const enum hd_status ended =
            hd_cuda_check(cudaStreamSynchronize(watch.stream), HD_CUDA_LAUNCHED_FAILED);

        st = st ? st : ended;
        (void)cudaStreamDestroy(watch.stream);
    }
    if (watch.begin)
        (void)cudaEventDestroy(watch.begin);
    if (watch.end)
        (void)cudaEventDestroy(watch.end);
    return st;
}

static enum hd_status list_choice(struct hd_cuda_gemm_state *gemm, const struct hd_choice *choice)
{
    if (gemm->choice_count == gemm->choice_capacity) {
        const int capacity = gemm->choice_capacity ? 2 * gemm->choice_capacity : 64;
        struct hd_choice *larger = realloc(gemm->choices, (size_t)capacity * sizeof *larger);

        if (!larger)
            return hd_err(HD_NO_MEMORY, "no memory for the choices among cuBLASLt's algorithms");
        gemm->choices = larger;
        gemm->choice_capacity = capacity;
    }
    gemm->choices[gemm->choice_count++] = *choice;
    return HD_OK;
}

enum hd_status hd_cuda_product_tune(const struct hd_backend *cuda, struct cuda_product *p,
                                    const struct hd_gemm_args *args,
                                    const struct cuda_addresses *at)
{
    struct hd_cuda_gemm_state *gemm = cuda->gemm;
    struct hd_choice choice;
    const struct hd_choice *kept;
    enum hd_status st = HD_OK;

    if (!gemm->path || p->tuned || p->candidate_count < 2)
        return HD_OK;
    choice = (struct hd_choice){.product = name_product(cuda, p), .offered = p->candidate_count};
    kept = hd_cuda_choices_find(gemm->kept, gemm->kept_count, choice.product);
    if (kept && kept->offered == p->candidate_count) {
        p->choice = kept->chosen;
    } else {
        const cublasStatus_t failed = hd_cuda_product_place(p, at);

        st = failed ? hd_err(HD_INTERNAL, "gemm: %s does not take the address of an operand: %s",
                             cuda->traits.library, cublasLtGetStatusString(failed))
                    : choose_by_time(cuda, p, args);
    }
    p->tuned = !st && p->supported;
    if (!p->tuned)
        return st;
    choice.chosen = p->choice;
    return list_choice(gemm, &choice);
}

/* ---- the table's slots ---- */

const struct hd_choice *hd_cuda_gemm_choices(struct hd_backend *cuda, int *ret_count)
{
    static const struct hd_choice none;
    const struct hd_cuda_gemm_state *gemm = cuda->gemm;

    *ret_count = gemm ? gemm->choice_count : 0;
    if (!gemm || !gemm->path)
        return NULL;
    return gemm->choices ? gemm->choices : &none;
}

static void use_choice(struct hd_backend *cuda, const struct hd_choice *choice)
{
    for (int b = 0; b < HD_CUDA_GEMM_BUCKETS; b++)
        for (struct cuda_product *p = cuda->gemm->products[b]; p; p = p->next)
            if (p->tuned && name_product(cuda, p) == choice->product)
                p->choice = choice->chosen;
}

void hd_cuda_gemm_choose(struct hd_backend *cuda, const struct hd_choice *choices, int count)
{
    struct hd_cuda_gemm_state *gemm = cuda->gemm;

    for (int i = 0; gemm && i < gemm->choice_count; i++) {
        struct hd_choice *own = &gemm->choices[i];
        const struct hd_choice *other = hd_cuda_choices_find(choices, count, own->product);

        if (!other || other->offered != own->offered || other->chosen < 0 ||
            other->chosen >= own->offered || other->chosen == own->chosen)
            continue;
        own->chosen = other->chosen;
        use_choice(cuda, own);
    }
}

/* Writes the file of choices. Several processes may write concurrently: each writes a whole file,
 * and the last one stays. Choices that another process has added meanwhile are re-read and kept. */
static enum hd_status write_file(struct hd_backend *cuda)
{
    struct hd_cuda_gemm_state *gemm = cuda->gemm;
    struct hd_choice *all;
    struct hd_text text = {0};
    int old_count = 0, count;
    bool changed = false;
    enum hd_status st;

    all = malloc((size_t)(gemm->choice_count + HD_CUDA_CHOICES_MAX) * sizeof *all);
    if (!all)
        return hd_err(HD_NO_MEMORY, "no memory for a file of choices");
    count = gemm->choice_count;
    memcpy(all, gemm->choices, (size_t)count * sizeof *all);
    read_file(gemm, gemm->kept, &old_count);
    gemm->kept_count = old_count;
    for (int i = 0; i < gemm->choice_count; i++) {
        const struct hd_choice *old =
            hd_cuda_choices_find(gemm->kept, old_count, gemm->choices[i].product);

        changed |= !old || old->chosen != gemm->choices[i].chosen ||
                   old->offered != gemm->choices[i].offered;
    }
    for (int i = 0; i < old_count; i++)
        if (!hd_cuda_choices_find(gemm->choices, gemm->choice_count, gemm->kept[i].product))
            all[count++] = gemm->kept[i];
    hd_cuda_choices_format(all, count < HD_CUDA_CHOICES_MAX ? count : HD_CUDA_CHOICES_MAX,
                           gemm->device, &text);
    free(all);
    st = text.failed ? hd_err(HD_NO_MEMORY, "no memory for a file of choices") : HD_OK;
    if (!st && changed)
        st = hd_file_make_dirs(cuda->options.choices_dir, HD_FILE_JOB_DIR_MODE);
    if (!st && changed)
        st = hd_file_write_atomic(gemm->path, text.data, text.len_bytes, 0644);
    hd_text_free(&text);
    return st;
}

void hd_cuda_gemm_keep_choices(struct hd_backend *cuda)
{
    const struct hd_cuda_gemm_state *gemm = cuda->gemm;

    if (gemm && gemm->choice_count && write_file(cuda))
        hd_log(HD_LOG_WARN, "gemm: the choices among algorithms are not kept: %s",
               hd_err_message());
}

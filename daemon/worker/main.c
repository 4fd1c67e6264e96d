#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "version/version.h"
#include "worker/worker.h"

static const struct verb {
    const char *name, *arguments, *help;
    int (*run)(int argc, char **argv);
} verbs[] = {
    {"rank", "--job FILE --rank R --world W --link-fd N --shm-control N --shm-ranks N,N..",
     "one rank of an attempt; the supervisor starts it", hd_worker_rank},
    {"generate",
     "--checkpoint DIR --prompt TEXT [--chat [--system TEXT] [--template FILE] [--date D]] "
     "[--max-tokens N]\n"
     "             [--temperature T] [--top-k K] [--top-p P] [--greedy] [--seed S] [--threads N]\n"
     "             [--precision P] [--weights W] [--device D] [--base DIR] [--adapter DIR]",
     "generates text from a checkpoint", hd_worker_generate},
    {"logits",
     "--checkpoint DIR --tokens 'ID ID ..' [--out FILE.npy] [--threads N]\n"
     "             [--base DIR] [--adapter DIR]",
     "the most likely next tokens: JSON lines; with --out all logits as an array",
     hd_worker_logits},
    {"eval",
     "--checkpoint DIR [--windows N] [--context N] [--precision fp32|bf16] [--threads N]\n"
     "            [--val SET] [--base DIR] [--adapter DIR] [--json | --jsonl] [-- FILE...]",
     "loss and perplexity on text or token files, else on the job's validation data",
     hd_worker_eval},
    {"choices",
     "--checkpoint DIR [--limit N] [--context N] [--precision P] [--weights W] [--device D]\n"
     "            [--threads N] [--base DIR] [--adapter DIR] [--json | --jsonl] -- FILE...",
     "multiple choice by log-likelihood; a line of FILE is {prompt, choices, answer}",
     hd_worker_choices},
    {"export",
     "--checkpoint DIR --out DIR [--dtype fp32|bf16] [--max-shard-size MB] [--adapter] [--force]\n"
     "            [--base DIR] [--text-only] [--ema] [--json | --jsonl]",
     "writes a checkpoint as a model directory that transformers loads", hd_worker_export},
    {"tokenize",
     "--out FILE --tokenizer T [--format npy|bin|megatron] [--threads N]\n"
     "             [--key NAME | --columns C] [--end-of-text ID | --no-append-eot]\n"
     "             [--form auto|text|messages|..] [--template FILE] [--date D]\n"
     "             [--loss answers|last|all] [--json] -- IN...",
     "makes a token file from text files", hd_worker_tokenize},
    {"train-tokenizer",
     "--out DIR --vocab N [--special TOKEN].. [--bos T] [--eos T] [--pad T]\n"
     "             [--pattern cl100k|gpt2] [--min-count N] [--threads N] [--columns C] [--force]\n"
     "             [--json] -- IN...",
     "makes a byte-level BPE, as tokenizer.json and tokenizer_config.json, from text files",
     hd_worker_train_tokenizer},
    {"data",
     "--tokenizer T --vocab N [--end-of-text ID|none] [--form F] [--columns C]\n"
     "             [--roles R] [--bad-rows B] [--model DIR] < FILES",
     "contents of a job's data files, as JSON; a line of FILES is train|val SOURCE BYTES PATH",
     hd_worker_data},
    {"samples",
     "[--first K] [--count N] [--json] [--colour] [--facts] [--sample N]\n"
     "            [--questions] < JOB",
     "samples of a job with the tokens that count for the loss; --facts: the contents of an epoch, "
     "as JSON; --sample: only checks one conversation in N; --questions: only counts those of "
     "validate.choices and the prompts, of validate.samples and those that the model answers",
     hd_worker_samples},
    {"bigram", "--job FILE", "entropy of a bigram model on a resolved job's validation data",
     hd_worker_bigram},
    {"memory", "--job FILE [--rank R]",
     "memory that a rank of a resolved job will reserve, by purpose", hd_worker_memory},
    {"program", "--job FILE [--rank R]", "the compiled programs of a rank, as text",
     hd_worker_program},
    {"schedule",
     "--name NAME|--file FILE --stages P --micro-batches M [--virtual-stages V] [--text]",
     "checks and draws a pipeline schedule, with its slots; --text: the schedule as a file",
     hd_worker_schedule},
    {"device", "[--threads N] [--world N] [--device cpu|cuda|auto] [--measure]",
     "traits of this machine's CPU, or of its first GPU; --measure: the GPU memory that a process "
     "uses",
     hd_worker_device_verb},
    {"gpus", "", "this machine's GPUs, and why some cannot be used, as JSON", hd_worker_gpus},
    {"gpu-sample", "", "power, clocks and errors of this machine's GPUs, as JSON",
     hd_worker_gpu_sample},
    {"probe", "--out FILE [--devices cpu:N[:T]] [--seconds 60] [--quick] [--answer]",
     "measures kernels and collectives of idle devices, for heddle plan --calibration FILE; "
     "--quick: the smallest sizes, for tests; --answer: prints `measured` or why not, and ends "
     "with "
     "its parent, for heddled",
     hd_worker_probe},
};
enum { VERBS = sizeof verbs / sizeof verbs[0] };
enum { WORK_THREADS = 4 }; /* threads that every verb may start */

static void print_verb(FILE *out, int i)
{
    (void)fprintf(out, "  %-9s %s\n            %s\n", verbs[i].name, verbs[i].arguments,
                  verbs[i].help);
}

static void print_help(FILE *out)
{
    (void)fprintf(out, "heddle-worker: the program that computes\n\n");
    for (int i = 0; i < VERBS; i++)
        print_verb(out, i);
    (void)fprintf(out,
                  "\nexample: heddle-worker generate --checkpoint runs/a/attempt-1/checkpoints/"
                  "step-00000100 --prompt 'The '\n");
}

int hd_worker_finish(const char *verb, enum hd_status st)
{
    if (!st) /* flushes stdout, so that a failed print is found */
        st = hd_file_print("");
    if (!st)
        return HD_WORKER_OK;
    (void)fprintf(stderr, "heddle-worker %s: %s\n", verb, hd_err_message());
    if (st == HD_NOT_FOUND)
        return HD_WORKER_NOT_FOUND;
    /* a limit concerns the input: the size of a file, the steps of a template */
    return st == HD_INVALID || st == HD_UNSUPPORTED || st == HD_LIMIT ? HD_WORKER_USAGE
                                                                      : HD_WORKER_FAILED;
}

enum hd_status hd_worker_print(enum hd_status st, struct hd_text *text)
{
    if (!st)
        st = text->failed ? hd_err(HD_NO_MEMORY, "no memory to print the result")
                          : hd_file_print(text->data ? text->data : "");
    hd_text_free(text);
    return st;
}

void hd_worker_note(const char *verb, const char *lines)
{
    while (*lines) {
        const size_t len = strcspn(lines, "\n");

        (void)fprintf(stderr, "heddle-worker %s: note: %.*s\n", verb, (int)len, lines);
        lines += len + (lines[len] == '\n');
    }
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int find_verb(const char *name)
{
    int i = 0;

    while (i < VERBS && strcmp(name, verbs[i].name) != 0)
        i++;
    return i;
}

int main(int argc, char **argv)
{
    const int verb = argc >= 2 ? find_verb(argv[1]) : VERBS;
    const bool works = verb < VERBS && (argc < 3 || !asks_for_help(argv[2]));

    if (!hd_process_prepare_or_tell(
            "heddle-worker",
            &(struct hd_process_needs){.files = 48, .threads = works ? WORK_THREADS : 0}))
        return HD_WORKER_FAILED;
    hd_log_init("heddle-worker", HD_LOG_INFO);
    hd_file_ignore_size_signal();
    if (works)
        return verbs[verb].run(argc - 2, argv + 2);
    if (verb < VERBS) {
        print_verb(stdout, verb);
        return hd_worker_finish("--help", HD_OK);
    }
    if (argc >= 2 && asks_for_help(argv[1])) {
        print_help(stdout);
        return hd_worker_finish("--help", HD_OK);
    }
    if (argc >= 2 && strcmp(argv[1], "--version") == 0) {
        (void)printf("heddle-worker %s\n", hd_version_text);
        return hd_worker_finish("--version", HD_OK);
    }
    if (argc >= 2)
        (void)fprintf(stderr, "heddle-worker: there is no verb '%s'\n\n", argv[1]);
    print_help(stderr);
    return HD_WORKER_USAGE;
}

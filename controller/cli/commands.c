/* The table of verbs, with what --help says of each. What is not built is not here. */
#include "controller/cli/cli.h"

/* The formula is hd_model_flops_per_token's, the peak the backend's measure_peak. */
#define MFU_HELP                                                                               \
    "In step lines, mfu = FLOPs per token x tokens per second / (peak x devices), where\n"     \
    "  FLOPs per token = 6 x weights in matrices (the embedding's look-up is none)\n"          \
    "                    + 6 x layers x hidden x (context + 1) for causal attention,\n"        \
    "  peak = the multiply-add rate in the compute precision that each rank measures at its\n" \
    "         start on its own threads, in 50 ms.\n"

static const char local_help[] =
    "Usage: heddle local FILE [--set KEY=VALUE]... [--state-dir DIR] [-o FORMAT]\n"
    "\n"
    "Runs a job here and now: starts a controller and a daemon of its own, shows the progress, "
    "and\n"
    "ends with the job's exit code. Nothing is left running, however it ends.\n"
    "\n"
    "  --set KEY=VALUE    in place of what the file says, such as train.steps=100\n"
    "  --state-dir DIR    where the run's folder goes; else heddle-runs beside the file\n"
    "  -o jsonl           a line of JSON for each step, validation, event, and the end\n"
    "\n"
    "Each run has a folder of its own with logs, checkpoints and history.jsonl (what -o jsonl\n"
    "prints). Ctrl-C writes a checkpoint and stops; a second Ctrl-C kills.\n"
    "\n" MFU_HELP "\n"
    "Example:\n"
    "  heddle local job.yaml --set train.steps=100\n";

static const char submit_help[] =
    "Usage: heddle submit FILE|- [--watch] [--set KEY=VALUE]... [-q] [--request-id ID]\n"
    "\n"
    "Checks a job file and hands it to the controller. Prints the job's number.\n"
    "\n"
    "  -w, --watch        then follow the job, and end with its exit code\n"
    "  --set KEY=VALUE    in place of what the file says, such as train.steps=100\n"
    "  -q, --quiet        print the number only\n"
    "  --request-id ID    16 to 64 letters, digits, - and _: the same ID never makes two jobs\n"
    "\n"
    "Example:\n"
    "  heddle submit job.yaml --watch --set resources.devices=4\n";

static const char validate_help[] =
    "Usage: heddle validate FILE|- [--set KEY=VALUE]... [--controller ADDR]\n"
    "\n"
    "Checks a job file (docs/job-file.md), opens its data files, says what they hold (documents,\n"
    "tokens), and starts nothing. With --controller it also asks whether the job would start now.\n"
    "\n"
    "  --set KEY=VALUE    in place of what the file says\n"
    "  -o json            the job with every default filled in\n"
    "\n"
    "Example:\n"
    "  heddle validate job.yaml -o json\n";

static const char plan_help[] =
    "Usage: heddle plan FILE|- [--devices cpu:N[:T]|KIND:N] [--set KEY=VALUE]... [-o FORMAT]\n"
    "\n"
    "Says what each rank of a job will take, and starts nothing: every part of its memory, to the\n"
    "byte, and the operations and bytes of a step. The layout is the one that a rank builds; the\n"
    "device is described by heddle-worker on this machine, or is a GPU of a known kind, which "
    "need\n"
    "not be here: its rates are those of its data sheet, its memory what such GPUs report.\n"
    "\n"
    "  --devices cpu:N[:T]  N devices of T threads; else the most that resources.devices allows,\n"
    "                       which share the cores, or are GPUs if resources.device says so and\n"
    "                       this machine has one\n"
    "  --devices KIND:N     N GPUs of a kind: a100-80gb, h100, h200, b200 ...; of another one it\n"
    "                       says which are known\n"
    "  --set KEY=VALUE      in place of what the file says\n"
    "  -o json              the same for programs, an item for each rank\n"
    "\n"
    "Example:\n"
    "  heddle plan job.yaml --devices cpu:4:8 --set parallel.micro_batch=2\n"
    "  heddle plan job.yaml --devices h100:8\n";

static const char jobs_help[] =
    "Usage: heddle jobs [--state STATE]... [--owner NAME] [-n COUNT] [-o FORMAT]\n"
    "\n"
    "Lists jobs, newest first. REASON says exactly what a queued job waits for.\n"
    "\n"
    "  --state STATE      queued, running, stopping, succeeded, failed or cancelled\n"
    "  --owner NAME       only jobs of this user\n"
    "  -n, --limit COUNT  at most so many; else 100\n"
    "  -o wide            more columns, nothing cut\n"
    "\n"
    "Example:\n"
    "  heddle jobs --state running -o wide\n";

static const char show_help[] = "Usage: heddle show JOB [-o FORMAT]\n"
                                "\n"
                                "Shows one job with its attempts, where they ran and how they "
                                "ended; with -o json also the job\n"
                                "file, complete.\n"
                                "\n"
                                "Example:\n"
                                "  heddle show 7\n";

static const char watch_help[] =
    "Usage: heddle watch JOB [-o FORMAT]\n"
    "\n"
    "Follows a job to its end and ends with its exit code: 0 when it succeeded, 1 when it failed "
    "or\n"
    "was cancelled. Ctrl-C leaves the job alone. Where there is no terminal, plain lines: a step "
    "at\n"
    "most once a second.\n"
    "\n"
    "  -o jsonl           a line of JSON for each step, validation and event, and the end;\n"
    "                     \"type\" tells which\n"
    "\n" MFU_HELP "\n"
    "Example:\n"
    "  heddle watch 7 -o jsonl | jq 'select(.type == \"validation\").loss'\n";

static const char wait_help[] =
    "Usage: heddle wait JOB\n"
    "\n"
    "Waits for a job's end without showing its progress; exit code 0 when it succeeded, 1 when it\n"
    "failed or was cancelled.\n"
    "\n"
    "Example:\n"
    "  heddle wait 7 && heddle generate 7 --prompt 'Once upon'\n";

static const char logs_help[] =
    "Usage: heddle logs JOB [-f] [--rank R] [--attempt K]\n"
    "\n"
    "Prints what a rank wrote.\n"
    "\n"
    "  -f, --follow       go on as it writes, and with the next attempts, until the job's end\n"
    "  --rank R           which rank; else 0\n"
    "  --attempt K        which attempt; else the newest\n"
    "\n"
    "Example:\n"
    "  heddle logs 7 -f --rank 1\n";

static const char events_help[] =
    "Usage: heddle events [JOB] [-o FORMAT]\n"
    "\n"
    "Prints what happened to a job, or, without JOB, to nodes and controller; oldest first.\n"
    "\n"
    "Example:\n"
    "  heddle events 7\n";

static const char cancel_help[] = "Usage: heddle cancel JOB... [--now]\n"
                                  "\n"
                                  "Stops jobs. The ranks write a checkpoint first. The reply comes "
                                  "when the decision is on disk;\n"
                                  "heddle wait tells when the ranks are gone.\n"
                                  "\n"
                                  "  --now              kill the ranks, without a checkpoint\n"
                                  "\n"
                                  "Example:\n"
                                  "  heddle cancel 7\n";

static const char nodes_help[] =
    "Usage: heddle nodes [-o FORMAT]\n"
    "\n"
    "Lists the nodes of the cluster with their devices and the jobs on them.\n"
    "\n"
    "Example:\n"
    "  heddle nodes -o wide\n";

static const char generate_help[] =
    "Usage: heddle generate JOB|DIR --prompt TEXT [--max-tokens N] [--seed S]\n"
    "                       [--temperature T] [--top-k K] [--top-p P] | [--greedy]\n"
    "\n"
    "Lets a trained model go on from a text: the newest checkpoint of a job, or what lies in a\n"
    "folder (a checkpoint, a job's folder, a run of heddle local, a model of transformers).\n"
    "\n"
    "  --max-tokens N     how many tokens at most; else 256\n"
    "  --temperature T    below 1: more likely tokens; 0 is --greedy; else 0.8\n"
    "  --top-k K          only the K most likely tokens\n"
    "  --top-p P          only the most likely tokens that together reach the probability P\n"
    "  --greedy           always the most likely token\n"
    "  --seed S           the same seed gives the same text; else 1\n"
    "\n"
    "Example:\n"
    "  heddle generate 7 --prompt 'Once upon' --temperature 0.8 --top-k 40\n";

static const char checkpoint_help[] =
    "Usage: heddle checkpoint ls JOB|DIR [-o FORMAT]\n"
    "       heddle checkpoint verify JOB|DIR [--step N]\n"
    "       heddle checkpoint export JOB|DIR --out DIR [--step N] [--dtype fp32|bf16]\n"
    "                                [--max-shard-size MB] [--force]\n"
    "\n"
    "ls lists the complete checkpoints of a job, or in a folder, oldest first. verify reads every\n"
    "byte of each, compares it with what was written, and names the file, the tensor and the "
    "range\n"
    "of bytes where it is damaged; of a folder made by export too. export writes a folder that\n"
    "Hugging Face's transformers loads: config.json, model.safetensors (several files and an "
    "index\n"
    "above the size), tokenizer.json where there is one, and heddle-hashes.json to verify it by.\n"
    "The folder appears whole or not at all.\n"
    "\n"
    "  --step N             the checkpoint of this step; else all (ls, verify), the newest "
    "(export)\n"
    "  --out DIR            the folder to make\n"
    "  --dtype D            of the weights: fp32, bit for bit as they are, or bf16; else fp32\n"
    "  --max-shard-size MB  of one file, in 10^6 bytes; else 5000\n"
    "  --force              replaces a model folder that is there\n"
    "\n"
    "Example:\n"
    "  heddle checkpoint export 7 --out my-model --dtype bf16\n";

static const char data_help[] =
    "Usage: heddle data tokenize IN... --out OUT --tokenizer T [--format npy|bin|megatron]\n"
    "                            [--threads N] [--key NAME] [--no-append-eot] [-o json]\n"
    "\n"
    "Makes a token file of text. A .jsonl file has a document in each line, any other file is "
    "one;\n"
    "each is followed by the tokenizer's end of text. The output is the same for any number of\n"
    "threads, and appears whole or not at all: Ctrl-C (exit status 130) and a full disk leave "
    "what\n"
    "was there. A second Ctrl-C does not wait for what threads have begun, and leaves OUT.part.*.\n"
    "\n"
    "  --out OUT          the file to make; ids take 16 bits, above 65,536 tokens 32\n"
    "  --format F         npy (an array), bin (llm.c's) or megatron (OUT.bin and OUT.idx, which\n"
    "                     tells documents apart); else by the ending of OUT: .npy, .bin, .idx\n"
    "  --tokenizer T      a tokenizer.json of byte-level BPE (GPT-2, Llama-3, Qwen), or bytes\n"
    "  --threads N        else one for each core\n"
    "  --key NAME         where the text stands in a line of .jsonl; else text\n"
    "  --no-append-eot    documents follow each other without end of text\n"
    "\n"
    "Example:\n"
    "  heddle data tokenize corpus/*.jsonl --out corpus.npy --tokenizer tokenizer.json\n"
    "  heddle data tokenize books.txt --out books --format megatron --tokenizer tokenizer.json\n";

static const char drain_help[] =
    "Usage: heddle drain NODE [--reason TEXT] [-o FORMAT]\n"
    "\n"
    "Lets a node finish the attempts that it has, and gives it no new ones.\n"
    "\n"
    "  --reason TEXT      what `heddle nodes` says of it\n"
    "\n"
    "Example:\n"
    "  heddle drain n7 --reason 'new disk on Monday'\n";

static const char undrain_help[] = "Usage: heddle undrain NODE [-o FORMAT]\n"
                                   "\n"
                                   "Lets a drained node take new attempts again.\n"
                                   "\n"
                                   "Example:\n"
                                   "  heddle undrain n7\n";

const struct cli_command cli_commands[] = {
    {"local", "run a job here and now", local_help, cli_local, false},
    {"submit", "hand a job to the controller", submit_help, cli_submit, false},
    {"validate", "check a job file", validate_help, cli_validate, false},
    {"plan", "say what a job will take", plan_help, cli_plan, false},
    {"jobs", "list jobs", jobs_help, cli_jobs, false},
    {"show", "show a job with its attempts", show_help, cli_show, false},
    {"watch", "follow a job's progress to its end", watch_help, cli_watch, false},
    {"wait", "wait for a job's end", wait_help, cli_wait, false},
    {"logs", "print what a rank wrote", logs_help, cli_logs, true},
    {"events", "print what happened to a job", events_help, cli_events, false},
    {"cancel", "stop a job", cancel_help, cli_cancel, false},
    {"nodes", "list the nodes of the cluster", nodes_help, cli_nodes, false},
    {"drain", "give a node no new work", drain_help, cli_drain, false},
    {"undrain", "give a drained node work again", undrain_help, cli_undrain, false},
    {"generate", "write text with a trained model", generate_help, cli_generate, true},
    {"data", "make token files of text", data_help, cli_data, false},
    {"checkpoint", "list, verify and export checkpoints", checkpoint_help, cli_checkpoint, false},
};
const size_t cli_command_count = sizeof cli_commands / sizeof cli_commands[0];

/* spelling: commands under the names that people bring from other tools.
 *
 * A noun and a verb ("job list", "node drain") is a command of one word, as its row says (nouns), and
 * "list" behind a command is its verb "ls". Words of other tools ("sbatch", "kill", "torchrun") do not
 * work and are answered with the command that does it here. */
#include <stdio.h>
#include <string.h>

#include "base/words.h"
#include "controller/cli/cli.h"

/* Words of other tools, separated by blanks, and what to write here. */
static const struct habit {
    const char *words, *here;
} habits[] = {
    {"train run start launch pretrain finetune fine-tune sft dpo grpo kto orpo reward rloo rlhf "
     "tune "
     "lora torchrun accelerate deepspeed mpirun exec fit axolotl trl torchtune llamafactory-cli",
     "heddle local FILE runs a job here, heddle submit FILE gives it to the controller"},
    {"sbatch srun salloc qsub bsub flux sky ray kubectl apply create enqueue schedule add new",
     "heddle submit FILE gives a job to the controller"},
    {"status stat ps ls list squeue qstat bjobs sacct get history st",
     "heddle jobs lists jobs; heddle show JOB shows one"},
    {"describe info inspect view", "heddle show JOB shows a job, heddle show-node NODE a node"},
    {"stop kill scancel qdel bkill abort terminate end down", "heddle cancel JOB stops a job"},
    {"suspend pause qhold",
     "heddle hold JOB keeps a job from being started; heddle requeue JOB stops a "
     "running one at a checkpoint"},
    {"unpause unsuspend qrls", "heddle release JOB lets a held job start"},
    {"restart continue retry rerun", "heddle resume JOB lets a job that has ended go on; "
                                     "heddle requeue JOB stops a running one and queues it again"},
    {"delete remove purge clean del", "heddle rm JOB removes a job that has ended; heddle local "
                                      "--clean removes runs of this machine"},
    {"sinfo pbsnodes bhosts qhost hosts workers cluster",
     "heddle nodes lists the nodes of the cluster"},
    {"scontrol", "heddle show JOB and heddle show-node NODE show; heddle hold, release, requeue, "
                 "drain and queue set change"},
    {"sprio why reason priority", "heddle explain JOB says why a job waits"},
    {"sshare sreport sacctmgr usage quota quotas",
     "heddle limits shows limits and what is used of them"},
    {"cordon", "heddle drain NODE gives a node no new work"},
    {"uncordon", "heddle undrain NODE gives a drained node work again"},
    {"log output stdout",
     "heddle logs JOB prints what a rank wrote; heddle logs -f JOB follows it"},
    {"curve curves graph draw plot_loss plot-loss",
     "heddle plot JOB|RUN draws curves, with --out loss.svg as a picture"},
    {"tail attach follow progress monitor",
     "heddle watch JOB follows a job's progress; heddle logs -f JOB follows its log"},
    {"talk converse ask repl assistant webchat playground",
     "heddle chat RUN|JOB has a conversation with a model"},
    {"infer inference predict sample complete completions prompt",
     "heddle generate RUN|JOB --prompt TEXT continues a text"},
    {"server api vllm openai deploy", "heddle serve RUN|JOB answers requests with a trained model"},
    {"evaluate lm_eval lm-eval lm-evaluation-harness test perplexity score benchmark",
     "heddle eval RUN|JOB examines a trained model on data or questions"},
    {"export convert merge merge-lora merge_lora convert_checkpoint to-hf gguf push",
     "heddle checkpoint export RUN|JOB --out DIR writes a model for transformers"},
    {"save ckpt checkpoints snapshot",
     "heddle checkpoint lists, saves, verifies, exports and removes "
     "checkpoints; see heddle checkpoint --help"},
    {"download pull hf huggingface-cli",
     "heddle fetch NAME downloads a model or data set of the Hugging Face hub"},
    {"model models", "heddle fetch NAME downloads a model; model.from of a job file names it"},
    {"tokenize preprocess preprocess_data prepare dataset datasets import",
     "heddle data tokenize FILES makes token files"},
    {"estimate memory estimate-memory dry-run dryrun autotune search layout",
     "heddle plan FILE says what memory and work a job will take"},
    {"check lint", "heddle validate FILE checks a job file"},
    {"schema options params parameters reference", "heddle keys lists what a job file may say"},
    {"recipes examples example template templates cookbook cp copy cat",
     "heddle recipe ls lists whole jobs to begin with; heddle recipe copy NAME DIR copies one"},
    {"nvidia-smi gpustat htop dashboard ui web webui sdiag gpus gpu devices",
     "heddle top shows the cluster at a glance; heddle-controller --http ADDR has a dashboard"},
    {"login logout auth user users",
     "heddle token makes, lists and revokes tokens; heddle whoami says who you are"},
    {"context contexts use set-context cluster-info ping",
     "heddle config shows which controller is used, and why"},
    {"init setup bootstrap", "heddle-controller init makes a cluster's identity; heddle local FILE "
                             "needs none"},
    {"join register invite",
     "heddle node invite NODE prints a line, and heddled join LINE joins with "
     "it"},
    {"doctor diagnose report support bug",
     "heddled --doctor examines a machine; heddle debug collects a tar file "
     "for a support request"},
    {"controller master scheduler", "heddle-controller is a program of its own"},
    {"agent daemon worker", "heddled is a program of its own"},
    {"tensorboard",
     "a run's folder has tensorboard/ with its event files; heddle plot JOB|RUN draws"},
    {"mlflow", "heddle track RUN --mlflow URL sends a run's metrics to MLflow"},
    {"wandb", "heddle-wandb.py sends a run to Weights & Biases (docs/tracking.md)"},
    {"upload publish repo",
     "heddle checkpoint export RUN|JOB --out DIR writes a model for transformers; "
     "checkpoint.copy_to of a job file copies its checkpoints to an object store"},
    {"quantize quant bnb", "heddle generate, serve and eval take --weights nf4, int8 or fp8; "
                           "model.quantization: nf4 of a job file trains an adapter beside them"},
    {"migrate move evict",
     "heddle requeue JOB stops a job at a checkpoint and queues it again; heddle "
     "drain NODE --deadline TIME frees a node"},
    {"sweep grid array hpo search-space",
     "heddle submit FILE --sweep KEY=V1,V2 or --array N submits "
     "several jobs"},
    {"rollback",
     "heddle resume JOB lets a job that has ended go on from its newest sound checkpoint"},
    {"gc prune cleanup", "heddle rm JOB removes a job that has ended, heddle checkpoint rm one "
                         "checkpoint; heddle local --clean removes runs of this machine"},
    {"disk df space storage", "heddle du says what checkpoints take on disk"},
    {"metrics metric losses",
     "heddle plot JOB|RUN draws metrics, and writes them with --out FILE.csv; "
     "heddle watch JOB -o jsonl prints them"},
    {"bench nccl-test nccl-tests bandwidth all_reduce_perf",
     "heddle probe NODE lets a node measure its "
     "devices"},
    {"diff compare", "heddle plot JOB JOB draws the curves of several jobs over one another"},
    {"ssh shell enter", "heddle logs JOB prints what a rank wrote; jobs have no shell"},
    {"edit patch set update alter resize scale reprioritize",
     "a job keeps its file: heddle cancel JOB, then heddle submit FILE --set KEY=VALUE; "
     "heddle queue set changes a queue"},
};

const char *cli_habit(const char *word)
{
    if (!strchr(word, ' '))
        for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++)
            if (hd_words_have(habits[i].words, word))
                return habits[i].here;
    return NULL;
}

const char *cli_nearest(const char *word, char ret_word[CLI_NEAREST_MAX])
{
    static char copies[sizeof habits / sizeof habits[0]][256];
    const char *words[512], *nearest;
    size_t count = 0;

    for (size_t i = 0; i < cli_command_count; i++)
        words[count++] = cli_commands[i].name;
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++) {
        (void)snprintf(copies[i], sizeof copies[i], "%s", habits[i].words);
        for (char *rest, *w = strtok_r(copies[i], " ", &rest);
             w && count < sizeof words / sizeof words[0]; w = strtok_r(NULL, " ", &rest))
            words[count++] = w;
    }
    nearest = hd_text_nearest(word, words, count);
    if (nearest)
        (void)snprintf(ret_word, CLI_NEAREST_MAX, "%s", nearest);
    return nearest ? ret_word : NULL;
}

/* Finds the next pair in a command's `nouns`, such as "node drain"; NULL: there is none. Sets the
 * length of its noun and its verb. */
static const char *next_pair(const char *at, int *ret_noun, int *ret_verb)
{
    while (at && (*at == ',' || *at == ' '))
        at++;
    if (!at || !*at)
        return NULL;
    *ret_noun = (int)strcspn(at, " ");
    *ret_verb = (int)strcspn(at + *ret_noun + 1, ",");
    return at;
}

static bool is_same_word(const char *text, int len, const char *word)
{
    return (int)strlen(word) == len && strncmp(text, word, (size_t)len) == 0;
}

void cli_add_verbs(const char *noun, struct hd_text *out)
{
    int noun_len = 0, verb_len = 0;

    for (size_t i = 0; i < cli_command_count; i++) {
        const struct cli_command *command = &cli_commands[i];

        for (size_t v = 0; v < command->body->verb_count && strcmp(command->name, noun) == 0; v++)
            hd_text_add(out, "%s%s", out->len_bytes ? " " : "", command->body->verbs[v].name);
        for (const char *p = command->nouns; (p = next_pair(p, &noun_len, &verb_len));
             p += noun_len + 1 + verb_len)
            if (is_same_word(p, noun_len, noun))
                hd_text_add(out, "%s%.*s", out->len_bytes ? " " : "", verb_len, p + noun_len + 1);
    }
}

static bool has_verb(const struct cli_command *command, const char *verb)
{
    for (size_t i = 0; i < command->body->verb_count; i++)
        if (strcmp(command->body->verbs[i].name, verb) == 0)
            return true;
    return false;
}

bool cli_replace_alias(char **words)
{
    static char ls[] = "ls", copy[] = "copy";
    static const struct {
        const char *other;
        char *verb;
    } others[] = {{"list", ls}, {"cp", copy}};
    int noun_len = 0, verb_len = 0;

    for (size_t i = 0; i < cli_command_count; i++) {
        const struct cli_command *command = &cli_commands[i];

        for (const char *p = command->nouns; (p = next_pair(p, &noun_len, &verb_len));
             p += noun_len + 1 + verb_len)
            if (is_same_word(p, noun_len, words[0]) &&
                is_same_word(p + noun_len + 1, verb_len, words[1])) {
                words[1] = (char *)(uintptr_t)command->name;
                return true;
            }
        for (size_t k = 0; k < 2 && strcmp(command->name, words[0]) == 0; k++)
            if (strcmp(words[1], others[k].other) == 0 && has_verb(command, others[k].verb))
                words[1] = others[k].verb;
    }
    return false;
}

/* generate: generates text with a trained model; heddle-worker does the work. */
#include "controller/cli/found.h"

enum { CLI_DRAFTS_MAX = 8 }; /* HD_DECODER_DRAFTS_MAX */

static int check_generate_flags(const struct cli *cli)
{
    if (!cli_given(cli, "prompt"))
        return cli_usage(
            "generate: --prompt is missing; give the text to continue, such as --prompt 'Once'");
    if (!cli_given(cli, "chat") &&
        (cli_given(cli, "system") || cli_given(cli, "template") || cli_given(cli, "date")))
        return cli_usage("generate: --system, --template and --date are for --chat");
    if (cli_given(cli, "greedy") &&
        (cli_given(cli, "temperature") || cli_given(cli, "top-k") || cli_given(cli, "top-p")))
        return cli_usage(
            "generate: --greedy takes the most likely token, so --temperature, --top-k and "
            "--top-p have no effect; leave them or --greedy out");
    return CLI_CONTINUE;
}

static int cli_generate(struct cli *cli, int argc, char **argv)
{
    const char *step_text = NULL;
    const struct cli_flag flags[] = {
        {"chat", .kind = CLI_FLAG_BOOL,
         .help = "answers by the model's chat template, or FILE; --system T\n"
                 "is told first; --date D: else the job's, else today"},
        {"max-tokens", 0, CLI_FLAG_INT, NULL, "N", "at most N tokens; else 256", .min = 1,
         .max = 1 << 24},
        {"temperature", 0, CLI_FLAG_REAL, NULL, "T",
         "below 1: likely tokens are chosen more often; else 0.8", .min = 0, .max = 100},
        {"top-k", 0, CLI_FLAG_INT, NULL, "K", .min = 0, .max = 1 << 24, .joins = true},
        {"top-p", 0, CLI_FLAG_REAL, NULL, "P", "among the K most likely, or those that add up to P",
         .min = 0, .max = 1},
        {"greedy", .kind = CLI_FLAG_BOOL, .joins = true},
        {"seed", 0, CLI_FLAG_INT, NULL, "S",
         "the most likely token; the same S gives the same text (1)", .min = 0, .max = INT64_MAX},
        {"draft", 0, CLI_FLAG_INT, NULL, "N",
         "up to N tokens are guessed by the model's MTP layer; else 0", .min = 0,
         .max = CLI_DRAFTS_MAX},
        {"step", 0, CLI_FLAG_TEXT, &step_text, "N|best",
         .help = "of this step, or of the lowest validation loss; else newest"},
        {"adapter", 0, CLI_FLAG_TEXT, NULL, "DIR",
         .help = "beside a model folder: a folder of PEFT, or a checkpoint"},
        {"base", 0, CLI_FLAG_TEXT, NULL, "DIR",
         .help = "where the base of a checkpoint is now, if not where it was"},
        {"precision", 0, CLI_FLAG_TEXT, NULL, "P",
         .help = "fp32, bf16 or fp16; else the job's, of a model folder fp32"},
        {"weights", 0, CLI_FLAG_TEXT, NULL, "W",
         .help = "of a model folder: nf4, int8 or fp8 for matrices of blocks"},
        {"device", 0, CLI_FLAG_TEXT, NULL, "D", .joins = true},
        {"tp", 0, CLI_FLAG_TEXT, NULL, "N", .joins = true},
        {"pp", 0, CLI_FLAG_TEXT, NULL, "M",
         .help = "cpu or cuda; N x M ranks share it, each has a GPU"},
        {"prompt", 0, CLI_FLAG_WORDS, NULL, "TEXT", .help = NULL},
        {"system", 0, CLI_FLAG_WORDS, NULL, "T", .help = NULL},
        {"template", 0, CLI_FLAG_TEXT, NULL, "FILE", .help = NULL},
        {"date", 0, CLI_FLAG_TEXT, NULL, "D", .help = NULL},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    if (code == CLI_CONTINUE)
        code = check_generate_flags(cli);
    return code == CLI_CONTINUE ? found_become(cli, "heddle-worker", "generate", step_text) : code;
}

const struct cli_body cli_body_generate = {
    .usage = "Usage: heddle generate JOB|DIR --prompt TEXT [--step N|best] [--adapter DIR] ...\n"
             "                       [--temperature T] [--top-k K] [--top-p P] | [--greedy]\n"
             "                       [--chat [--system T] [--template FILE] [--date D]]\n",
    .about = "Continues a text with a trained model: the newest checkpoint of a job or in a\n"
             "folder (a checkpoint, a job's folder, a run of heddle local), or a model folder\n"
             "of transformers, or hf://ORG/NAME; to a text's end, or in a chat an answer.\n",
    .examples = "heddle generate 7 --prompt 'Once upon' --temperature 0.8 --top-k 40",
    .run = cli_generate,
    .is_raw = true,
};

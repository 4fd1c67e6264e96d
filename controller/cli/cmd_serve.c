/* serve: serves a trained model over HTTP, by heddle-serve. */
#include "controller/cli/found.h"

static int cli_serve(struct cli *cli, int argc, char **argv)
{
    const char *step_text = NULL;
    const struct cli_flag flags[] = {
        {"listen", 0, CLI_FLAG_TEXT, NULL, "ADDR",
         .help = "HOST:PORT or unix:PATH; else 127.0.0.1:8000"},
        {"cert", 0, CLI_FLAG_TEXT, NULL, "FILE", .joins = true},
        {"key", 0, CLI_FLAG_TEXT, NULL, "FILE", .joins = true},
        {"tokens", 0, CLI_FLAG_TEXT, NULL, "FILE",
         .help = "TLS, and lines NAME TOKEN: who may\n"
                 "ask; needed beyond this machine. SIGHUP reads them again"},
        {"http-host", 0, CLI_FLAG_TEXT, NULL, "NAMES",
         .help = "further host names that it answers to, with commas"},
        {"name", 0, CLI_FLAG_TEXT, NULL, "NAME",
         .help = "of the model in requests; else its job's, or its folder's"},
        {"sequences", 0, CLI_FLAG_TEXT, NULL, "N", .help = "at a time; else 8. Others wait"},
        {"context", 0, CLI_FLAG_TEXT, NULL, "N",
         .help = "tokens of a sequence; else the model's, of a model folder\n"
                 "at most 4096"},
        {"precision", 0, CLI_FLAG_TEXT, NULL, "P", .joins = true},
        {"weights", 0, CLI_FLAG_TEXT, NULL, "W", .joins = true},
        {"device", 0, CLI_FLAG_TEXT, NULL, "D", .joins = true},
        {"tp", 0, CLI_FLAG_TEXT, NULL, "N", .joins = true},
        {"pp", 0, CLI_FLAG_TEXT, NULL, "N", .joins = true},
        {"step", 0, CLI_FLAG_TEXT, &step_text, "N|best", .joins = true},
        {"adapter", 0, CLI_FLAG_TEXT, NULL, "DIR", .joins = true},
        {"base", 0, CLI_FLAG_TEXT, NULL, "DIR", .help = "as of heddle generate"},
        {"template", 0, CLI_FLAG_TEXT, NULL, "FILE",
         .help = "of the chat; else the model's. --date D: else today"},
        {"threads", 0, CLI_FLAG_TEXT, NULL, "N", .help = "of the CPU; else one for each core"},
        {"queue", 0, CLI_FLAG_TEXT, NULL, "N",
         .help = "choices that wait or run; else 256. More are refused"},
        {"body-max", 0, CLI_FLAG_TEXT, NULL, "KIB", .joins = true},
        {"timeout", 0, CLI_FLAG_TEXT, NULL, "SECONDS", .help = "of a request; else 4096 and 600"},
        {"grace", 0, CLI_FLAG_TEXT, NULL, "SECONDS",
         .help = "for requests under way at the end; else 30"},
        {"draft", 0, CLI_FLAG_TEXT, NULL, "N",
         .help = "up to N tokens are guessed by the model's MTP layer; else 0"},
        {"date", 0, CLI_FLAG_TEXT, NULL, "D", .help = NULL},
    };
    int code = cli_parse(cli, argc, argv, flags, sizeof flags / sizeof flags[0], 1, 1);

    return code == CLI_CONTINUE ? found_become(cli, "heddle-serve", NULL, step_text) : code;
}

const struct cli_body cli_body_serve = {
    .usage = "Usage: heddle serve JOB|DIR [--listen ADDR] [--sequences N] [--context N] ...\n",
    .about = "Serves a trained model, found as by heddle generate, by HTTP with OpenAI's API:\n"
             "/v1/completions, /v1/chat/completions and /v1/models. SIGTERM lets it finish.\n",
    .examples = "heddle serve Qwen2.5-0.5B --precision bf16 --listen 127.0.0.1:8000",
    .run = cli_serve,
    .is_raw = true,
};

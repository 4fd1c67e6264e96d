/* commands: the table of commands and their help texts. */
#include "controller/cli/cli.h"
#include "controller/cli/commands_help.h"
#include "controller/cli/identity.h"

/* Definition of mfu for help texts. A help text has at most 24 lines of 80 columns (cli_test).
 * FLOPs: hd_model_flops_per_token; peak: the backend's measure_peak. */
#define MFU_HELP                                                                        \
    "mfu = FLOPs per token x tokens per second / (peak x devices); FLOPs per token =\n" \
    "6 x weights in matrices + 6 x layers x hidden x (context + 1); peak = what each\n" \
    "rank measures at its start on its own threads.\n"

static const char local_help[] =
    "Usage: heddle local FILE [--set KEY=VALUE]... [--dir NAME] [--state-dir DIR]\n"
    "                    [--log-every N] [--times] [-o FORMAT]\n"
    "       heddle local --resume RUN|FILE [--set KEY=VALUE]... [...]\n"
    "       heddle local --clean [DIR|FILE] [--keep N] [--yes] [-o FORMAT]\n"
    "\n"
    "Runs a job on this machine, with a controller and a daemon of its own. Ends with\n"
    "the job's exit code and leaves no process. Ctrl-C writes a checkpoint and stops\n"
    "the job, a second Ctrl-C kills it. The run's folder keeps logs, checkpoints and\n"
    "history.jsonl. --resume goes on from its newest sound checkpoint (FILE: of its\n"
    "newest run). --clean removes runs that are not in use, and asks first.\n"
    "\n"
    "  --set KEY=VALUE    in place of what the file says, such as train.steps=100;\n"
    "                     with --resume as in heddle resume\n"
    "  --dir NAME         the run's folder, or its path; else a new name\n"
    "  --state-dir DIR    where run folders are; else heddle-runs beside FILE\n"
    "  --keep N           --clean keeps the newest N; else 1\n"
    "  --yes              --clean does not ask\n"
    "  --isolation WORD   of the ranks, as of heddled: try, require or off\n"
    "  --http HOST:PORT   a dashboard there while it runs, such as 127.0.0.1:9460\n"
    "  --log-every N, --times, -o jsonl    as of heddle watch\n"
    "\n"
    "Example:\n"
    "  heddle local --resume heddle-runs/latest --set train.steps=2000\n";

static const char submit_help[] =
    "Usage: heddle submit FILE|- [--watch] [--set KEY=VALUE]... [--plan FILE] [-q]\n"
    "                     [--must-fit] [--times] [--request-id ID] [--dry-run]\n"
    "       heddle submit FILE --array N|A-B [--set KEY=VALUE]... [...]\n"
    "       heddle submit FILE --sweep KEY=V1,V2,... [--sweep ...]... [...]\n"
    "\n"
    "Checks a job file and gives the job, or all members of an array, to the\n"
    "controller. Prints the numbers of the jobs.\n"
    "\n"
    "  -w, --watch        then follow the job as heddle watch does\n"
    "  --set KEY=VALUE    in place of what the file says, such as train.steps=100\n"
    "  --array N|A-B      jobs NAME-1 to NAME-N; --set train.seed=%a: their numbers\n"
    "  --sweep KEY=V1,V2  jobs NAME-KEYV1 .. with these values, of all --sweep\n"
    "  --must-fit         refuse what the cluster can never run (exit code 7)\n"
    "  --dry-run          only ask whether the job would be taken, and start now\n"
    "  --plan FILE        run the layout of plan --out FILE, if the job is still that\n"
    "  -q, --quiet        print the numbers only. --times: as of heddle watch\n"
    "  --request-id ID    16 to 64 letters, digits, - and _: of one ID one job is\n"
    "                     made, however often it is submitted\n"
    "\n"
    "Example:\n"
    "  heddle submit job.yaml --sweep train.lr.peak=1e-3,3e-4 --sweep train.seed=1,2\n";

static const char validate_help[] =
    "Usage: heddle validate FILE|- [--set KEY=VALUE]... [--controller ADDR]\n"
    "\n"
    "Checks a job file (docs/job-file.md), opens its data files and says what they\n"
    "hold: documents and tokens. Starts nothing. With --controller it also says\n"
    "whether the job would start now.\n"
    "\n"
    "  --set KEY=VALUE    in place of what the file says, such as train.steps=100\n"
    "  -o json            the job with every default filled in\n"
    "\n"
    "Example:\n"
    "  heddle validate job.yaml -o json\n";

static const char plan_help[] =
    "Usage: heddle plan FILE|- [--cluster FILE | --devices KIND:N | --devices cpu:N |\n"
    "                   --live] [--device-memory SIZE] [--calibration FILE]\n"
    "                   [--pin NAME=VALUE,..] [--top N] [--explain] [--out FILE]\n"
    "                   [--set KEY=VALUE]... [-o FORMAT]\n"
    "Searches the fastest layout of a job that fits machines, perhaps not here,\n"
    "and says what each rank takes, to the byte (docs/planning.md)\n"
    "  --cluster FILE       the machines, as docs/planning.md says\n"
    "  --devices KIND:N     N GPUs of a kind, in usual machines: a100-80gb, h100 ...\n"
    "  --devices cpu:N[:T]  N CPU devices of T threads, in the layout a controller\n"
    "                       takes. Without either: the devices of this machine\n"
    "  --live               the nodes that the controller knows; it searches\n"
    "  --device-memory SIZE what a rank may take of a device, such as 24G or 512MiB\n"
    "  --calibration FILE   times are those that heddle-worker probe measured\n"
    "  --pin NAME=VALUE,..  fixes members of parallel: tp=8,stages=[7,9]\n"
    "  --top N              show N layouts; else 3\n"
    "  --explain            also where the time goes, and what does not fit\n"
    "  --out FILE           write the plan, for heddle submit --plan FILE\n"
    "  --set KEY=VALUE      in place of what the file says\n"
    "  -o json              one object; -o jsonl: a line for each rank\n"
    "\n"
    "Exit code 2 if nothing fits; of CPU devices 1 if a rank does not.\n"
    "\n"
    "Example:\n"
    "  heddle plan job.yaml --cluster cluster.yaml --pin tp=8 --explain\n";

static const char jobs_help[] =
    "Usage: heddle jobs [--state STATE]... [--owner NAME] [--name PATTERN]\n"
    "                   [-n COUNT] [-o FORMAT]\n"
    "\n"
    "Lists jobs, newest first. REASON says what a queued job waits for, or what\n"
    "is wrong with a running one.\n"
    "\n"
    "  --state STATE      queued, running, stopping, succeeded, failed or cancelled\n"
    "  --owner NAME       only jobs of this owner, as in the column OWNER\n"
    "  --name PATTERN     only jobs of this name; * is any text, ? one character\n"
    "  -n, --limit COUNT  at most COUNT jobs; else 100\n"
    "  -o wide            more columns, nothing cut\n"
    "\n"
    "Example:\n"
    "  heddle jobs --state running -o wide\n";

static const char show_help[] =
    "Usage: heddle show JOB|RUN [-o FORMAT]\n"
    "\n"
    "Shows one job: its state, its last step, and its attempts with where they ran\n"
    "and how they ended. With -o json also the whole job file. JOB is a number, or a\n"
    "name: that of one job alone, or of one alone that has not ended. RUN is the\n"
    "folder of a run of heddle local, under way or not.\n"
    "\n"
    "Example:\n"
    "  heddle show 7\n";

static const char watch_help[] =
    "Usage: heddle watch JOB|RUN [--log-every N] [--times] [-o FORMAT]\n"
    "\n"
    "Follows a job to its end. Exit code 0 when it succeeded, 1 when it failed or\n"
    "was cancelled. Ctrl-C (130) and SIGTERM (143) end the watching, not the job.\n"
    "\n"
    "  --log-every N      print every Nth step without a terminal; 0: about 100 lines\n"
    "  --times            lines of steps end with tokens per second, time and mfu\n"
    "  -o jsonl           JSON, a line for each step, validation, event and the end:\n"
    "                     \"type\" tells which\n"
    "\n"
    "Without a terminal, standard output has steps, validations, checkpoints and the\n"
    "end, by step number. Without --times it is equal for equal runs of a job: diff\n"
    "compares them. Standard error says once a minute how far it is and how long yet.\n"
    "\n" MFU_HELP "\n"
    "Example:\n"
    "  heddle watch 7 -o jsonl | jq 'select(.type == \"validation\").loss'\n";

static const char plot_help[] =
    "Usage: heddle plot JOB|RUN... [--out FILE.svg|FILE.csv] [--keys NAMES]\n"
    "                   [--x AXIS] [--log] [--smooth S] [--width PIXELS]\n"
    "\n"
    "Draws the loss of jobs, or of runs of heddle local, over one another: on the\n"
    "terminal, or into a picture. RUN is the folder of a run. Dots are validations.\n"
    "Values far from all others are left out of the axis; the title counts them.\n"
    "heddle local writes loss.svg into the run's folder at its end.\n"
    "\n"
    "  --out FILE      an .svg for pages and slides, or a .csv with every step\n"
    "  --keys NAMES    metrics, such as loss,lr,scores; each gets axes of its own;\n"
    "                  else loss, and scores of questions\n"
    "  --x AXIS        steps, tokens, or time (hours of training); else steps\n"
    "  --log           vertical axes are logarithmic\n"
    "  --smooth S      weight of the past in the moving average, from 0 (none) to\n"
    "                  below 1; else 0.6\n"
    "  --width PIXELS  of the picture; else 900\n"
    "\n"
    "Example:\n"
    "  heddle plot 7 8 --keys loss,grad_norm --out runs.svg\n";

static const char wait_help[] =
    "Usage: heddle wait JOB|RUN\n"
    "\n"
    "Waits for a job's end without showing its progress. Exit code 0 when it\n"
    "succeeded, 1 when it failed or was cancelled.\n"
    "\n"
    "Example:\n"
    "  heddle wait 7 && heddle generate 7 --prompt 'Once upon'\n";

static const char logs_help[] =
    "Usage: heddle logs JOB|RUN [-f] [--rank R|A-B|all] [--attempt K] [--tail N]\n"
    "                   [--since TIME]\n"
    "\n"
    "Prints what ranks wrote to their logs; of several ranks, each line begins with\n"
    "the rank's number.\n"
    "\n"
    "  -f, --follow       go on as it writes, and with the next attempts, until the\n"
    "                     job's end\n"
    "  --rank R           which rank, or several: 0-3,7, or all; else 0\n"
    "  --attempt K        which attempt; else the newest\n"
    "  --tail N           only the last N lines of each rank\n"
    "  --since TIME       from the first line on that has a time, not longer ago than\n"
    "                     TIME: 10m, 2h\n"
    "\n"
    "Example:\n"
    "  heddle logs 7 -f --rank 1\n";

static const char events_help[] =
    "Usage: heddle events [JOB|RUN] [-f] [-o FORMAT]\n"
    "\n"
    "Prints all events of a job, oldest first: who requested it, where and when its\n"
    "attempts started, how each rank ended. Without JOB: events of nodes.\n"
    "\n"
    "  -f, --follow       also new ones, in lines, until the job's end or Ctrl-C\n"
    "\n"
    "Example:\n"
    "  heddle events 7\n";

static const char cancel_help[] =
    "Usage: heddle cancel JOB|PATTERN... [--now] [--yes]\n"
    "\n"
    "Stops jobs. The ranks write a checkpoint first. The command returns when the\n"
    "controller has stored the decision; heddle wait JOB returns when the ranks have\n"
    "ended. A PATTERN such as 'sweep-*' stops all jobs of such names that have not\n"
    "ended; it lists them, and asks.\n"
    "\n"
    "  --now              kill the ranks, without a checkpoint\n"
    "  -y, --yes          do not ask\n"
    "\n"
    "Example:\n"
    "  heddle cancel 7\n"
    "  heddle cancel 'sweep-*'\n";

static const char resume_help[] =
    "Usage: heddle resume JOB [--set KEY=VALUE]... [-o FORMAT]\n"
    "\n"
    "Lets a job that failed, was cancelled or succeeded go on: a new attempt starts\n"
    "from its newest sound checkpoint. What a run that diverged has written after its\n"
    "last finite loss is not sound.\n"
    "\n"
    "  --set KEY=VALUE    change a key of the job file, such as train.steps=2000 or\n"
    "                     train.lr.peak=1e-4. The model, the data, train.seed,\n"
    "                     train.global_batch and train.init_from cannot change.\n"
    "                     Warm-up and decay that the job file left to their defaults\n"
    "                     follow the new train.steps.\n"
    "\n"
    "Example:\n"
    "  heddle resume 7 --set train.steps=2000\n";

static const char requeue_help[] =
    "Usage: heddle requeue JOB [-o FORMAT]\n"
    "\n"
    "Stops a running job at a checkpoint, frees its devices and queues it again. Its\n"
    "next attempt starts from that checkpoint.\n"
    "\n"
    "Example:\n"
    "  heddle requeue 7\n";

static const char explain_help[] =
    "Usage: heddle explain JOB|RUN [-o FORMAT]\n"
    "\n"
    "Says why a job waits: the first reason, everything else that keeps it waiting,\n"
    "and when it is expected to start, where that can be computed. Of a running job\n"
    "it says what is wrong, if anything is.\n"
    "\n"
    "Example:\n"
    "  heddle explain 7\n";

static const char hold_help[] =
    "Usage: heddle hold JOB|PATTERN... [--yes] [-o FORMAT]\n"
    "\n"
    "Keeps waiting jobs from being started until heddle release. A job that runs\n"
    "goes on to its end; it is held when it would wait again, after a failure or\n"
    "when it gave way to another job.\n"
    "\n"
    "  -y, --yes          do not ask before a PATTERN such as 'sweep-*' holds jobs\n"
    "\n"
    "Example:\n"
    "  heddle hold 7 8\n";

static const char release_help[] =
    "Usage: heddle release JOB|PATTERN... [--yes] [-o FORMAT]\n"
    "\n"
    "Lets jobs that heddle hold holds start again.\n"
    "\n"
    "  -y, --yes          do not ask before a PATTERN such as 'sweep-*' releases jobs\n"
    "\n"
    "Example:\n"
    "  heddle release 7 8\n";

static const char queue_help[] =
    "Usage: heddle queue ls [-o FORMAT]\n"
    "       heddle queue set NAME [--devices-max N] [--user-devices-max N]\n"
    "                             [--weight W] [--closed | --open] [-o FORMAT]\n"
    "       heddle queue rm NAME [-o FORMAT]\n"
    "\n"
    "ls lists the queues in which jobs wait (docs/scheduling.md). set makes or\n"
    "changes one; what is not given stays as it is. A lower limit stops no running\n"
    "job. rm removes one that no job waits or runs in; a job that has ended in it\n"
    "goes on, if it is resumed, in the queue default. set and rm are for admins.\n"
    "\n"
    "  --devices-max N       devices that its jobs may hold together; 0: no limit\n"
    "  --user-devices-max N  that the jobs of one user may hold in it; 0: no limit\n"
    "  --weight W            1 to 1000; of two queues with jobs of equal priority,\n"
    "                        the one that holds less for its weight comes first\n"
    "  --closed              jobs may be submitted to it, and none of them starts;\n"
    "                        those that run go on\n"
    "  --open                they start again\n"
    "\n"
    "Example:\n"
    "  heddle queue set research --devices-max 64 --weight 2\n"
    "  heddle queue set night --closed\n";

static const char rm_help[] =
    "Usage: heddle rm JOB|PATTERN... [--yes] [-o FORMAT]\n"
    "\n"
    "Removes jobs that have ended, for good: from all lists, and their folders in the\n"
    "jobs directory with all checkpoints, which the nodes that ran them delete. Says\n"
    "what will go, and asks. A PATTERN such as 'sweep-*' means all jobs of such names\n"
    "that have ended. A job whose files a job that has not ended names, as in\n"
    "train.init_from, is not removed.\n"
    "\n"
    "  -y, --yes          do not ask\n"
    "\n"
    "Example:\n"
    "  heddle rm 7 8\n";

static const char nodes_help[] =
    "Usage: heddle nodes [-o FORMAT]\n"
    "\n"
    "Lists the nodes of the cluster with their devices and the jobs on them.\n"
    "\n"
    "Example:\n"
    "  heddle nodes -o wide\n";

static const char keys_help[] =
    "Usage: heddle keys [KEY | GROUP] [--markdown | --schema] [-o FORMAT]\n"
    "\n"
    "Lists the keys of a job file with their defaults and meanings. Of a name that\n"
    "another tool has for a setting, says what it is here. With a schema, editors\n"
    "complete and check keys; the first line of a job file then is\n"
    "  # yaml-language-server: $schema=job.schema.json\n"
    "\n"
    "  --markdown         as the rows of the table in docs/job-file.md\n"
    "  --schema           as a JSON Schema of the whole file\n"
    "\n"
    "Example:\n"
    "  heddle keys train.lr\n";

static const char track_help[] =
    "Usage: heddle track RUN|- [--mlflow URL] [--experiment NAME] [--patience S]\n"
    "\n"
    "Sends the metrics of a run of heddle local to a tracking server of MLflow, and\n"
    "follows the run to its end; of a job of the controller:\n"
    "  heddle watch JOB -o jsonl | heddle track -\n"
    "No step waits for the server: one that is away is told once, and what is not\n"
    "sent is kept. Run again, it goes on in the same run of MLflow.\n"
    "\n"
    "  --mlflow URL        else MLFLOW_TRACKING_URI; secrets: MLFLOW_TRACKING_TOKEN,\n"
    "                      or _USERNAME and _PASSWORD\n"
    "  --experiment NAME   else MLFLOW_EXPERIMENT_NAME, or heddle\n"
    "  --patience S        seconds to wait for a server that is away at the end;\n"
    "                      else 600\n"
    "\n"
    "Example:\n"
    "  heddle track heddle-runs/latest --mlflow http://127.0.0.1:5000\n";

static const char translate_help[] =
    "Usage: heddle translate FILE|- [--out JOB.yaml]\n"
    "\n"
    "Writes a job file from a file of axolotl, TRL, torchtune, LLaMA-Factory, from\n"
    "TrainingArguments of transformers as JSON, or from arguments of Megatron-LM or a\n"
    "script with them, and says of each of their settings what it is here. What\n"
    "Heddle does not have is a comment in the job file. Nothing of theirs is run.\n"
    "\n"
    "  --out JOB.yaml   write the job file there, with a chat template beside it if\n"
    "                   the data needs one; else to standard output, with the table\n"
    "                   as comments. A file that is there is not replaced\n"
    "\n"
    "Example:\n"
    "  heddle translate qlora.yml --out job.yaml && heddle validate job.yaml\n";

static const char recipe_help[] =
    "Usage: heddle recipe ls [-o FORMAT]\n"
    "       heddle recipe show NAME [-o FORMAT]\n"
    "       heddle recipe copy NAME DIR [--set KEY=VALUE]...\n"
    "\n"
    "Whole jobs to begin with: pretraining, full tunes, LoRA, QLoRA, preferences,\n"
    "reward models. Each has a job file that says why its values are as they are,\n"
    "machines for heddle plan, 20 rows in the form of its data, and a README with\n"
    "commands, licences, memory and time.\n"
    "\n"
    "ls lists them. show prints README and job file. copy makes a folder of your own,\n"
    "with a schema for editors; nothing that is in DIR is replaced.\n"
    "\n"
    "  --set KEY=VALUE    written into the copied job file, such as train.steps=100\n"
    "\n"
    "They are in share/heddle/recipes beside this program, or HEDDLE_RECIPES names\n"
    "the folder.\n"
    "\n"
    "Example:\n"
    "  heddle recipe copy lora-qwen2.5-0.5b my-tune --set train.steps=300\n";

static const char topo_help[] =
    "Usage: heddle topo [NODE] [-o FORMAT]\n"
    "\n"
    "Shows which nodes share a switch, as the controller's --cluster file says, and\n"
    "of each node its adapters, the age of its inventory, when its devices were\n"
    "measured (heddle probe), and devices that are more than 10% slower than others\n"
    "of their kind. Of NODE, or with -o wide, also how its devices reach one another:\n"
    "nv4: four NVLinks; pix, pxb: one PCIe switch, several; phb: a host bridge; node,\n"
    "sys: within a NUMA node, between two, at nominal rates of one direction; and\n"
    "what was measured.\n"
    "\n"
    "Example:\n"
    "  heddle topo n1\n";
static const char probe_help[] =
    "Usage: heddle probe NODE|--all [-o FORMAT]\n"
    "\n"
    "Lets nodes measure their GPUs, or their CPU devices where there are none, for at\n"
    "most 60 s, waits, and shows the figures: products by shape and precision,\n"
    "memory, messages between each two devices, collectives, checkpoints. Plans of\n"
    "the controller then go by them. Only idle devices are measured: a node with a\n"
    "job is refused, and a job that starts meanwhile ends the probe. A probe that\n"
    "fails changes nothing. A node whose heddled stops meanwhile is given up at once.\n"
    "A node measures by itself when it is new (heddled --probe). For operators.\n"
    "\n"
    "Exit code 6 if a node was not measured.\n"
    "\n"
    "  --all              all nodes at once\n"
    "\n"
    "Example:\n"
    "  heddle probe n1\n";

static const char drain_help[] =
    "Usage: heddle drain NODE [--reason TEXT] [--deadline TIME] [-o FORMAT]\n"
    "\n"
    "Gives a node no new attempts; those that it has go on to their end. With\n"
    "--deadline they write a checkpoint and leave as soon as they fit on other\n"
    "nodes, and then at the latest; their jobs go on from it where they fit.\n"
    "\n"
    "  --reason TEXT      reason that heddle nodes shows\n"
    "  --deadline TIME    from now, such as 30m or 2h\n"
    "\n"
    "Example:\n"
    "  heddle drain n7 --reason 'new disk on Monday' --deadline 30m\n";

static const char undrain_help[] = "Usage: heddle undrain NODE [-o FORMAT]\n"
                                   "\n"
                                   "Gives a drained node new attempts again.\n"
                                   "\n"
                                   "Example:\n"
                                   "  heddle undrain n7\n";

static const char node_help[] =
    "Usage: heddle node rm NODE [-o FORMAT]\n"
    "       heddle node invite NODE [--address HOST:PORT] [--ttl TIME]\n"
    "       heddle node revoke NODE\n"
    "\n"
    "rm removes a node that is gone for good from the list, so that another daemon\n"
    "may have its name: that of a machine that was installed anew, above all. A node\n"
    "with work is not removed, and neither is a connected one, unless it is drained.\n"
    "The heddled of a drained node ends; started again, it joins as a new node. A\n"
    "lost node gives up its name by itself.\n"
    "invite prints one line, with which one machine joins under this name within an\n"
    "hour: heddled join LINE. A NODE such as gpu-* invites any number of machines\n"
    "whose names begin so; each says its own (--node-name), and none can take the\n"
    "name of one that has joined. revoke ends certificates, streams and invitations\n"
    "of a name, or the invitation gpu-*, at once.\n"
    "\n"
    "  --address HOST:PORT  of the controller, as the node reaches it\n"
    "  --ttl TIME           how long the line is valid, such as 90d; else an hour\n"
    "\n"
    "Example:\n"
    "  heddle node rm n7\n";

static const char version_help[] =
    "Usage: heddle version [--check] [-o FORMAT]\n"
    "\n"
    "Prints version and commit of this build.\n"
    "\n"
    "  --check            also those of controller and nodes; exit code 1 if one is\n"
    "                     another build than this one\n"
    "\n"
    "Example:\n"
    "  heddle version --check\n";

static const char show_node_help[] =
    "Usage: heddle show-node NODE [-o FORMAT]\n"
    "\n"
    "Shows one node: its state and why it is not ready, its build, and each device\n"
    "with the job that has it, or with its problem.\n"
    "\n"
    "Example:\n"
    "  heddle show-node n1\n";

static const char top_help[] =
    "Usage: heddle top [--interval SECONDS] [--once] [-o FORMAT]\n"
    "\n"
    "Shows jobs that have not ended, those that run first, with nodes that are not\n"
    "ready, again and again until Ctrl-C. Without a terminal, and with -o json, once.\n"
    "\n"
    "  --interval SECONDS  between two pictures; else 2\n"
    "  --once              once, also on a terminal\n"
    "\n"
    "Example:\n"
    "  heddle top --interval 5\n";

static const char du_help[] =
    "Usage: heddle du [JOB]... [-o FORMAT]\n"
    "\n"
    "Says what checkpoints take on disk: of each job given, else of the 1000 newest,\n"
    "largest first. heddle checkpoint rm and heddle rm make room.\n"
    "\n"
    "Example:\n"
    "  heddle du 7\n";

static const char debug_help[] =
    "Usage: heddle debug bundle [JOB]... [--out FILE] [-o FORMAT]\n"
    "\n"
    "Collects a tar file for a support request: versions, configuration,\n"
    "nodes, links, queues, jobs and events, and of each JOB its attempts, events,\n"
    "checkpoints and the last lines of its logs. What looks like a token, a key or a\n"
    "password is removed. Names of people, machines and files stay in it.\n"
    "\n"
    "  --out FILE         the file to make; else heddle-debug-TIME.tar\n"
    "\n"
    "Example:\n"
    "  heddle debug bundle 7\n";

static const char config_help[] =
    "Usage: heddle config show [-o FORMAT]\n"
    "       heddle config example\n"
    "\n"
    "show prints which controller, token and authority a command would use, and where\n"
    "each value came from: a flag, the environment, or a line of a configuration file\n"
    "(~/.config/heddle/client.yaml, then /etc/heddle/client.yaml; HEDDLE_CONFIG names\n"
    "another). example prints a file with all keys.\n"
    "\n"
    "Example:\n"
    "  heddle config show --context prod\n";

static const char completion_help[] =
    "Usage: heddle completion bash|zsh|fish\n"
    "\n"
    "Prints what a shell needs to complete commands and flags of heddle. The packages\n"
    "install it; elsewhere source it from the shell's start-up file.\n"
    "\n"
    "Example:\n"
    "  heddle completion bash > ~/.local/share/bash-completion/completions/heddle\n";

static const char whoami_help[] =
    "Usage: heddle whoami [-o FORMAT]\n"
    "\n"
    "Says who you are to the controller: the name that your jobs belong to, your role\n"
    "(viewer, user, operator or admin), how you came, and whose jobs you see.\n"
    "\n"
    "Example:\n"
    "  heddle whoami -o json\n";

static const char token_help[] =
    "Usage: heddle token create NAME [--role ROLE] [--ttl TIME] [--out FILE]\n"
    "       heddle token cert NAME [--role ROLE] [--out FILE]\n"
    "       heddle token ls [-a] [-o FORMAT]\n"
    "       heddle token revoke ID|NAME\n"
    "\n"
    "create makes a token for a person; it is shown once. cert makes a certificate\n"
    "with its key, for --tls-cert. ls lists tokens, certificates and invitations,\n"
    "without secrets. revoke ends one, or all of a person, at once. For admins.\n"
    "\n"
    "  --role ROLE   viewer, user, operator or admin; else user\n"
    "  --ttl TIME    how long a token lives, such as 12h or 30d; else 90 days\n"
    "  --out FILE    write it there, readable for you alone; else standard output\n"
    "  -a, --all     also those that have ended or expired\n"
    "\n"
    "Example:\n"
    "  heddle token create ann --ttl 30d --out ann.token\n";

static const char audit_help[] =
    "Usage: heddle audit [--after SEQ] [--verify] [-o FORMAT]\n"
    "\n"
    "Prints the audit log, oldest first: each call that changed something, or that\n"
    "was refused, with who made it, from where, and what came of it. For admins.\n"
    "\n"
    "  --after SEQ   only rows after this one\n"
    "  --verify      check that no row was changed or left out, and print the number\n"
    "                of rows and the last hash; keep both elsewhere, and a later run\n"
    "                shows whether rows are missing at the end. Exit code 6: changed\n"
    "\n"
    "Example:\n"
    "  heddle audit --verify\n";

static const char limits_help[] =
    "Usage: heddle limits [NAME] [-o FORMAT]\n"
    "\n"
    "Shows what you use of each limit, or with NAME, for admins, what another one\n"
    "does. The policy file sets them (docs/operations.md). What is over a limit is\n"
    "refused with exit code 6, and the limit is named.\n"
    "\n"
    "Example:\n"
    "  heddle limits ann\n";

const struct cli_command cli_commands[] = {
    {"Train", "local", "run a job on this machine", local_help, cli_local, false},
    {NULL, "submit", "give a job to the controller", submit_help, cli_submit, false},
    {NULL, "validate", "check a job file", validate_help, cli_validate, false},
    {NULL, "plan", "say what memory and work a job will take", plan_help, cli_plan, false},
    {NULL, "keys", "list what a job file may say", keys_help, cli_keys, false},
    {NULL, "translate", "write a job file from a file of another tool", translate_help,
     cli_translate, false},
    {NULL, "recipe", "list, show and copy whole jobs to begin with", recipe_help, cli_recipe,
     false},
    {"See how jobs fare", "jobs", "list jobs", jobs_help, cli_jobs, false},
    {NULL, "show", "show a job with its attempts", show_help, cli_show, false},
    {NULL, "watch", "follow a job's progress to its end", watch_help, cli_watch, false},
    {NULL, "plot", "draw the curves of jobs and runs", plot_help, cli_plot, false},
    {NULL, "track", "send a run's metrics to MLflow", track_help, cli_track, false},
    {NULL, "wait", "wait for a job's end", wait_help, cli_wait, false},
    {NULL, "logs", "print what a rank wrote", logs_help, cli_logs, true},
    {NULL, "events", "print the events of a job", events_help, cli_events, false},
    {NULL, "explain", "say why a job waits", explain_help, cli_explain, false},
    {NULL, "top", "show the cluster at a glance", top_help, cli_top, false},
    {NULL, "du", "say what checkpoints take on disk", du_help, cli_du, false},
    {"Change jobs", "cancel", "stop a job", cancel_help, cli_cancel, false},
    {NULL, "resume", "let a job that has ended go on", resume_help, cli_resume, false},
    {NULL, "requeue", "stop a job at a checkpoint and queue it again", requeue_help, cli_requeue,
     false},
    {NULL, "hold", "keep a job from being started", hold_help, cli_hold, false},
    {NULL, "release", "let a held job start", release_help, cli_release, false},
    {NULL, "rm", "remove jobs that have ended", rm_help, cli_rm, false},
    {NULL, "queue", "list, set and remove the queues of jobs", queue_help, cli_queue, false},
    {"Use models and data", "generate", "continue a text with a trained model", cli_generate_help,
     cli_generate, true},
    {NULL, "chat", "have a conversation with a trained model", cli_chat_help, cli_chat, true},
    {NULL, "serve", "answer requests with a trained model", cli_serve_help, cli_serve, true},
    {NULL, "eval", "examine a trained model on data or questions", cli_eval_help, cli_eval, false},
    {NULL, "checkpoint", "list, verify, export, save and remove checkpoints", cli_checkpoint_help,
     cli_checkpoint, false},
    {NULL, "data", "make token files and tokenizers, show the samples of a job", cli_data_help,
     cli_data, false},
    {NULL, "fetch", "download a model or data of the hub or of an object store", cli_fetch_help,
     cli_fetch, false},
    {"Operate nodes", "nodes", "list the nodes of the cluster", nodes_help, cli_nodes, false},
    {NULL, "show-node", "show a node with its devices", show_node_help, cli_show_node, false},
    {NULL, "topo", "show switches, links between devices and adapters", topo_help, cli_topo, false},
    {NULL, "probe", "let nodes measure their devices", probe_help, cli_probe, false},
    {NULL, "drain", "give a node no new work", drain_help, cli_drain, false},
    {NULL, "undrain", "give a drained node work again", undrain_help, cli_undrain, false},
    {NULL, "node", "invite, revoke and remove nodes", node_help, cli_node, false},
    {"People and their rights", "whoami", "say who you are to the controller", whoami_help,
     cli_whoami, false},
    {NULL, "token", "make, list and revoke tokens of people", token_help, cli_token, false},
    {NULL, "audit", "print who did what", audit_help, cli_audit, false},
    {NULL, "limits", "show limits and what is used of them", limits_help, cli_limits, false},
    {"This program", "config", "show which controller is used, and why", config_help, cli_config,
     false},
    {NULL, "version", "print the version, or check those of the cluster", version_help, cli_version,
     false},
    {NULL, "debug", "collect a tar file for a support request", debug_help, cli_debug, false},
    {NULL, "completion", "print what a shell completes words by", completion_help, cli_completion,
     true},
};
const size_t cli_command_count = sizeof cli_commands / sizeof cli_commands[0];

void cli_overview(struct hd_text *out)
{
    hd_text_add(out, "Usage: heddle COMMAND [ARGUMENTS]\n"
                     "\n"
                     "Trains language models: hands jobs to a controller and shows how they fare.\n"
                     "\n");
    for (size_t i = 0; i < cli_command_count; i++) {
        if (cli_commands[i].group)
            hd_text_add(out, "%s%s:\n", i ? "\n" : "", cli_commands[i].group);
        hd_text_add(out, "  %-11s %s\n", cli_commands[i].name, cli_commands[i].summary);
    }
    hd_text_add(
        out, "\n"
             "A noun and a verb work, too: heddle job list, job show JOB, node drain NODE ...\n"
             "JOB is a job's number, or the name of one job alone. RUN is the folder of a run\n"
             "of heddle local.\n"
             "\n"
             "Flags of every command:\n"
             "  --controller ADDR  unix:PATH or HOST:PORT; else HEDDLE_CONTROLLER, else that of\n"
             "                     the context, else the user's and the system's socket\n"
             "  --context NAME     of the configuration file; else HEDDLE_CONTEXT\n"
             "  --token-file FILE  your token for HOST:PORT; else HEDDLE_TOKEN_FILE\n"
             "  --tls-ca FILE      the authority of a HOST:PORT elsewhere; else HEDDLE_TLS_CA\n"
             "  --tls-cert FILE    your certificate and key; else HEDDLE_TLS_CERT\n"
             "  -o FORMAT          table, wide, json or jsonl (not where raw text is printed)\n"
             "  --color WHEN       auto, always or never; NO_COLOR is honoured\n"
             "  -h, --help         what a command does, with an example\n"
             "\n"
             "Exit codes: 0 success, 1 the job failed or was cancelled, 2 usage or bad input,\n"
             "3 controller not reachable, 4 not found, 5 not permitted, 6 the command itself\n"
             "failed, 7 the cluster can never run it (submit --must-fit), 130 Ctrl-C,\n"
             "143 SIGTERM.\n"
             "\n"
             "Example:\n"
             "  heddle local job.yaml\n");
}

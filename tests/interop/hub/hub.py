"""hub.py model|dataset NAME: downloads a repository, or finds it in the cache, and prints its folder.
hub.py warnings: prints how many repositories of the cache huggingface_hub takes for corrupt."""
import sys

import huggingface_hub

if sys.argv[1] == "warnings":
    print(len(huggingface_hub.scan_cache_dir().warnings))
else:
    print(huggingface_hub.snapshot_download(sys.argv[2], repo_type=sys.argv[1]))

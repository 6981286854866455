"""``python -m posttrain.cli`` is the command ``posttrain``."""

import sys

from posttrain.cli.main import main

sys.exit(main())

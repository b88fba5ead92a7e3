"""`python -m quantkit`: the command line without an installed script.

Nothing lives here and nothing imports it.
"""

import sys

from quantkit.cli import main

sys.exit(main())

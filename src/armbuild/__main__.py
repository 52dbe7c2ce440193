import sys

from armbuild.cli import main

sys.exit(main())

"""python -m dynedge"""

from dynedge.cli import main

main()

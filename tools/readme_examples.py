#!/usr/bin/env python3
"""Writes the output of `make test` that README.md shows, from the last run:

    make test && python3 tools/readme_examples.py

tools/test.sh leaves the result of each stage in build/test.txt; this script writes it between the
lines <!-- test:begin --> and <!-- test:end -->. It refuses a run in which a test failed.
"""
import argparse
import os
import sys

import bench_page


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    bench_page.add_page(parser)
    parser.set_defaults(page=os.path.join(bench_page.TOP, "README.md"))
    args = parser.parse_args()
    try:
        with open(os.path.join(bench_page.TOP, "build", "test.txt")) as f:
            text = f.read()
    except OSError:
        sys.exit("readme_examples.py: no build/test.txt: run `make test` first")
    last = text.rstrip().split("\n")[-1]
    if ", 0 failed" not in last:
        sys.exit(f"readme_examples.py: the last `make test` ended with \"{last}\"")
    bench_page.put(args, "test", f"```\n$ make test\n{text}```\n")


if __name__ == "__main__":
    main()

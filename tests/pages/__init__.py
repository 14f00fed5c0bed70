"""The code blocks of the pages: read, checked by their language, and run in order, page by page.

Comments before a block, which readers of the page do not see, control its test::

    <!-- not run: needs Docker -->      it is left out, for this reason, and counted
    <!-- file: models/mine/config.yaml -->  it is saved there, and checked by the name of the file
    <!-- printed -->                    it is what the block before it prints
    <!-- run                            sh that readers are spared, such as a server to ask
    cohort serve
    -->

Otherwise sh, python and js blocks run, and json is parsed. The sh blocks of a page share one shell;
each of its python and js blocks is a separate program. `python -m tools.pages` lists the blocks
that do not run.
"""

"""Mutation testing of what decides: faults made in the code, and the tests that notice them.

The sample that `make mutants` runs has been looked at: what survived in it was killed by new tests
or declared equivalent. When it was new, 40 mutants of each package, the tests killed 170 of the 188
that were neither equivalent nor in a sample looked at earlier: 90.4 %.
"""

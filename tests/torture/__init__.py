"""Hostile input, kills, neighbours, full disks and faulty servers: one harness, one table (docs/reliability.md).

python -m tests.torture                          the long form: 50,000 mutants and 200 kills
python -m tests.torture --short                  some of everything, in seconds
python -m tests.torture --seed 7 --only elf --case 123     one case again
"""

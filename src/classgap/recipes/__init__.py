"""One file per training setting of the papers, with its command, published row and cost; ``tables/`` has the papers' tables.

A recipe is found by the name of its file: ``classgap train mr2_cifar100``, ``classgap bench mr2_cifar100``; a table likewise:
``classgap bench mr2``. Nothing here is imported by other packages: the files are read by path, as those of a user are.
"""

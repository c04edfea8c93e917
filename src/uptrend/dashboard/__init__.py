"""Web pages over run directories, other trainers' logs and journals: local, offline, live, and
read-only.

`sources` finds what a folder contains, `index` stores what was read, `library` keeps the two up to
date. `curves`, `rollouts`, `findings` and `journals` answer questions about one of them; `api`
lists the questions, `server` listens, and `export` writes one run as a single file.
"""

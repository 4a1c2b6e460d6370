EXTRA_DIST += docs/ARCHITECTURE.md docs/expert-stats.md

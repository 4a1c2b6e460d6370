#!/bin/sh
# Stands in for the unit tests in a build without Criterion, so that their absence is seen.
echo 'unit tests were not built: Criterion is missing'
echo 'Debian, Ubuntu: apt-get install libcriterion-dev, then run configure again'
exit 77

# With the first source file here, this line builds the program:
# numoe_programs += numoe
numoe_sources +=

"""What `import retrievalkit as rk` offers: the programs of the command line as objects and functions.

Nothing is computed here. What is given (lists, dicts, tables, arrays) becomes what the programs read, options are
checked against the declarations of the commands, and results become objects that print well in notebooks.
"""

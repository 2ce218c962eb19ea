"""What data can be stored in: one format per file, found by being in this folder.

A file has

    SUFFIXES                  ends of file names that it reads, as ('.jsonl',); () for none. It reads files with '.gz'
                              behind the suffix too: they are unzipped before
    SCHEME                    what a path begins with that it reads, as 'tfds:', or the first name of a path, as
                              'pydocs'; None for none
    matches(folder)           optional: whether it reads a folder, by a mark inside it such as dataset_info.json
    open(path, split, cache)  -> `records.Opened`: the rows of one split

`path` is the text that the user wrote where the scheme or the folder decided, and a `local.File` where the suffix did.
`split` is the name of a split without a slice; a file is one split, whatever its name. `cache` is the folder for what
is downloaded or built. `open` may name keywords that a caller can set: `documents`, what ends a document. The names of
the classes of a file's fields are not its business: they stand in `labels.json` beside the file.

`open` raises a FileNotFoundError or a ValueError that names the path; rows raise ValueErrors that name file and line.
Every file of this folder is imported when any data is opened, so large packages are imported inside functions.
"""

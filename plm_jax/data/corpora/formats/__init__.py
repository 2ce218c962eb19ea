"""Storage formats of data: one per file, registered by being in this folder.

A file has

    SUFFIXES                  ends of file names that it reads, as ('.jsonl',); () for none. Files with '.gz' or
                              '.zst' after the suffix are unzipped as they are read
    SCHEME                    beginning of the paths that it reads, as 'tfds:', or the first name of a path, as
                              'pydocs'; None for none
    matches(folder)           optional: True if it reads a folder, by a file in it such as dataset_info.json
    open(path, split, cache)  -> `records.Opened`: the rows of one split

`path` is the text of the user if the scheme or the folder matched, and a `local.File` if the suffix matched. `split` is
the name of a split without a slice; a file is one split, whatever its name. `cache` is the folder for downloads and
builds. `open` may have keywords that a caller can set: `documents`, the end of a document. Names of classes are not
read here; they are in `labels.json` next to the file.

`open` raises a FileNotFoundError or a ValueError that names the path; rows raise ValueErrors that name file and line.
Every file of this folder is imported when any data is opened, so large packages are imported inside of functions.
"""

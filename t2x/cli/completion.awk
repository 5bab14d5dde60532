# Prints what may follow --gin. on the command line: names of the standard input (one per line) and names that
# gin files bind. Environment: T2X_TYPED, the beginning of the name; T2X_FILES, paths of gin files, one per line.

function offer(name,  rest, dot) {
  if (index(name, typed) != 1) return
  rest = substr(name, length(typed) + 1)
  dot = index(rest, ".")
  # First the part, then its parameters.
  name = dot ? typed substr(rest, 1, dot) : name "="
  if (!(name in offered)) { offered[name]; print name }
}

function target(line) {
  sub(/[ \t]*=.*/, "", line)
  gsub(/[ \t]/, "", line)
  return line
}

function read(file,  line, block, folder, included) {
  if (file in seen) return
  seen[file]
  folder = file
  sub(/[^\/]*$/, "", folder)
  while ((getline line < file) > 0) {
    if (line ~ /^include /) {
      included = line
      gsub(/^include *["']|["'].*$/, "", included)
      read(included ~ /^\// ? included : folder included)
    } else if (line ~ /^[A-Za-z_][A-Za-z0-9_\/.]*[ \t]*=/) {
      block = ""
      offer(target(line))
    } else if (line ~ /^[A-Za-z_][A-Za-z0-9_\/.]*:/) {
      block = line
      sub(/:.*/, "", block)
    } else if (block != "" && line ~ /^[ \t]+[A-Za-z_][A-Za-z0-9_]*[ \t]*=/) {
      offer(block "." target(line))
    }
  }
  close(file)
}

BEGIN {
  typed = ENVIRON["T2X_TYPED"]
  scope = typed
  if (!sub(/[^\/]*$/, "", scope)) scope = ""
  count = split(ENVIRON["T2X_FILES"], paths, "\n")
  for (i = 1; i <= count; i++) if (paths[i] != "") read(paths[i])
}

{ offer(scope $0) }


_t2x_gin_names() {
  # $1: the beginning of the name; the other arguments: words of the command line.
  local typed="$1" files='' word
  shift
  for word in "$@"; do
    case "$word" in
      --*) ;;
      *.gin) files="$files$word
" ;;
      *) [ -f "$word/config.gin" ] && files="$files$word/config.gin
" ;;
    esac
  done
  printf '%s\n' "$_t2x_names" | T2X_TYPED="$typed" T2X_FILES="$files" awk "$_t2x_awk"
}

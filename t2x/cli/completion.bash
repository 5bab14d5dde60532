
_t2x() {
  local word="${COMP_WORDS[COMP_CWORD]}" name
  case "$word" in
    --gin.*)
      COMPREPLY=()
      compopt -o nospace
      while IFS= read -r name; do COMPREPLY+=("--gin.$name"); done < <(
        _t2x_gin_names "${word#--gin.}" "${COMP_WORDS[@]}")
      ;;
    *)
      _shtab_t2x "$@"
      if [[ "$word" == --* && --gin. == "$word"* && " $_t2x_bound " == *" ${COMP_WORDS[1]} "* ]]; then
        COMPREPLY+=(--gin.)
        [[ ${#COMPREPLY[@]} = 1 ]] && compopt -o nospace
      fi
      ;;
  esac
  return 0
}

complete -o bashdefault -F _t2x t2x

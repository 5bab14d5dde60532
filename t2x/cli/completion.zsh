
_t2x() {
  if [[ $PREFIX == --gin.* ]]; then
    local -a names
    names=(${(f)"$(_t2x_gin_names "${PREFIX#--gin.}" ${words[@]})"})
    compset -P --gin.
    compadd -S '' -a names
  else
    _shtab_t2x "$@"
  fi
}

# cmake -DIN=FILE -DOUT=FILE.c -DNAME=name -P embed.cmake: the bytes of a file as a C array
file(READ ${IN} hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR size_bytes "${digits} / 2")
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
file(WRITE ${OUT}
    "#include <stddef.h>\n"
    "extern const unsigned char ${NAME}[];\n"
    "extern const size_t ${NAME}_bytes;\n"
    "const unsigned char ${NAME}[] = {${bytes}};\n"
    "const size_t ${NAME}_bytes = ${size_bytes};\n")

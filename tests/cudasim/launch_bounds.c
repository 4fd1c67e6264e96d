/* launch_bounds OBJECT...: prints a line "NAME THREADS" for each kernel with __launch_bounds__ in
 * objects made by nvcc: its mangled name, and the threads of the largest block that it may have.
 *
 * nvcc embeds one program for the GPU, an ELF file, per architecture. Its section .nv.info.NAME is
 * a list of attributes of the kernel NAME: a byte for the format, one for the attribute, and 16
 * bits that are the value, or, in format 4, the size of the value that follows. Attribute 5 holds
 * the three sizes of the largest block. (NVIDIA does not document the format; cuobjdump -elf prints
 * it.)
 */
#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MACHINE_CUDA = 190, SIZED = 4, MAX_THREADS = 5 };

struct bytes {
    const unsigned char *at;
    size_t count;
};

/* The section's contents; none if it is not within the file. */
static struct bytes contents_of(struct bytes elf, const Elf64_Shdr *section)
{
    if (section->sh_type == SHT_NOBITS || section->sh_offset > elf.count ||
        section->sh_size > elf.count - section->sh_offset)
        return (struct bytes){0};
    return (struct bytes){elf.at + section->sh_offset, section->sh_size};
}

/* Threads of the largest block by the attributes; 0: not limited. */
static uint32_t threads_of(struct bytes info)
{
    size_t at = 0;

    while (at + 4 <= info.count) {
        const unsigned char *head = info.at + at;
        const size_t value = head[2] | (size_t)head[3] << 8;
        uint32_t sizes[3];

        at += 4;
        if (head[0] != SIZED)
            continue;
        if (head[1] == MAX_THREADS && value == sizeof sizes && at + value <= info.count) {
            memcpy(sizes, info.at + at, sizeof sizes);
            return sizes[0] * sizes[1] * sizes[2];
        }
        at += value;
    }
    return 0;
}

static void print_kernels(struct bytes elf)
{
    static const char prefix[] = ".nv.info.";
    Elf64_Ehdr head;
    Elf64_Shdr section;
    struct bytes names;

    if (elf.count < sizeof head)
        return;
    memcpy(&head, elf.at, sizeof head);
    if (head.e_machine != MACHINE_CUDA || head.e_shentsize != sizeof section ||
        head.e_shoff > elf.count || head.e_shnum > (elf.count - head.e_shoff) / sizeof section ||
        head.e_shstrndx >= head.e_shnum)
        return;
    memcpy(&section, elf.at + head.e_shoff + head.e_shstrndx * sizeof section, sizeof section);
    names = contents_of(elf, &section);
    if (!names.count || names.at[names.count - 1])
        return;
    for (size_t i = 0; i < head.e_shnum; i++) {
        const char *name;
        uint32_t threads;

        memcpy(&section, elf.at + head.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_name >= names.count)
            continue;
        name = (const char *)names.at + section.sh_name;
        if (strncmp(name, prefix, sizeof prefix - 1) != 0)
            continue;
        threads = threads_of(contents_of(elf, &section));
        if (threads)
            printf("%s %u\n", name + sizeof prefix - 1, threads);
    }
}

static bool print_object(const char *path)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data = NULL;
    long size = -1;

    if (file && !fseek(file, 0, SEEK_END) && (size = ftell(file)) >= 0 && !fseek(file, 0, SEEK_SET))
        data = malloc((size_t)size + 1);
    if (!data || fread(data, 1, (size_t)size, file) != (size_t)size) {
        perror(path);
        free(data);
        if (file)
            (void)fclose(file);
        return false;
    }
    for (size_t at = 1; at + SELFMAG <= (size_t)size; at++) /* the object itself begins at 0 */
        if (memcmp(data + at, ELFMAG, SELFMAG) == 0)
            print_kernels((struct bytes){data + at, (size_t)size - at});
    free(data);
    (void)fclose(file);
    return true;
}

int main(int argc, char **argv)
{
    bool all = argc > 1;

    for (int i = 1; i < argc; i++)
        all = print_object(argv[i]) && all;
    return all ? 0 : 1;
}

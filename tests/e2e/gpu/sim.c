/* All of the plug-in is in hd_cudasim, which is linked whole. */
typedef int hd_nothing_here;

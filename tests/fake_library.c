/* fake_library -- a shared library of one function, which tests load as the program loads NVIDIA's.
 */
int fake_function(void);

int fake_function(void) {
    return 0;
}

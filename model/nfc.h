/* Unicode's normalisation form C: composed characters where they exist, marks in canonical order.
 * Some models' tokenizers were trained on text in this form and bring all text to it.
 */
#ifndef NUMOE_MODEL_NFC_H
#define NUMOE_MODEL_NFC_H

#include "base/mem.h"

/* True where it is certain, without work, that the text (valid UTF-8) is in NFC already. */
bool nfc_is_normal(const char *text, size_t n);

/* Appends the text (valid UTF-8) in NFC. */
numoe_status nfc_append(struct strbuf *out, const char *text, size_t n, numoe_error *err);

#endif

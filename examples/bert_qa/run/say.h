// Prints formatted texts to the console of a command.
#pragma once

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <utility>

#include "terminal/console.h"

namespace bert_qa {

// Prints a formatted text. Control characters are escaped, because the text may come from files.
template <class... A>
void say(terminal::Console& console, fmt::format_string<A...> format, A&&... arguments) {
  console.print(fsdp::printable(fmt::format(format, std::forward<A>(arguments)...), "\n"));
}

}  // namespace bert_qa

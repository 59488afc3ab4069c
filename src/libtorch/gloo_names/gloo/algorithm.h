// Stands for Gloo's header of this name: see ../README.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

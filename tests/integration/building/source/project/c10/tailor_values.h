#pragma once

#define VALUE 7

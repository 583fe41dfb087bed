/* brickOS's configuration: tasks, time, memory and atomic counters. */
#ifndef CONFIG_H
#define CONFIG_H
#define CONF_TM
#define CONF_TIME
#define CONF_MM
#define CONF_ATOMIC
#endif
